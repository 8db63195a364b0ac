"""The algorithms as pure functions on tensors; no model, no process, no file.

One optimizer step, in the order in which a batch passes through:

1. `packing`: rollouts become tensors, one answer a row.
2. `advantages`, `estimators`: rewards (and a critic's values) become one advantage per token.
3. `losses.policy_loss`, `losses.divergence`: one loss per token each; `correction` weighs the first.
4. `losses.aggregate`: those become one scalar per part of the batch, and the parts add up to the total.
5. `optimizer`: the gradient updates the weights.

Where verl, TRL and ROLL differ, a field of `conventions.Convention` selects the variant. Masks select and never
multiply: values outside of a mask may be NaN.

Letters: B rows (answers), T tokens, V vocabulary, N rows and tokens together, P prompts, G answers to one prompt.
"""

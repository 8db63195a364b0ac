"""What is learnt from rewards, as pure functions on tensors; no model, no process, no file.

One optimizer step, in the order in which a batch passes through:

1. `packing`: rollouts become tensors, one answer a row.
2. `losses.token_logprobs`: a model's logits become log-probabilities and entropy.
3. `advantages`: rewards (and a critic's values) become one number of credit per token.
4. `losses.policy_loss`, `losses.value_loss`, `kl.divergence`: one loss per token each, `correction` weighing the first.
5. `aggregation.aggregate`: those become one scalar per part of the batch, and the parts add up to the whole.
6. `optimizer`: the gradient moves the weights.

Where verl, TRL and ROLL do the same thing differently, a field of `conventions.Convention` says how. Everywhere a mask
chooses and never multiplies: what stands outside it may be NaN.

Letters: B rows (answers), T tokens, V vocabulary, N rows and tokens together, P prompts, G answers to one prompt.
"""

"""What is learnt from rewards, as pure functions on tensors; no model, no process, no file.

One optimizer step, in the order in which a batch passes through:

1. `packing`: rollouts become tensors, one answer a row.
2. `shaping`: length may cost reward; a group whose rewards are all equal may be drawn again.
3. `advantages`: rewards (and a critic's values) become one number of credit per token.
4. `losses.token_logprobs`: a model's logits become log-probabilities and entropy.
5. `losses.policy_loss`, `kl.divergence`, `value.value_loss`: one loss per token each, `correction` weighing the first.
6. `aggregation.aggregate`: those become one scalar per part of the batch, and the parts add up to the whole.
7. `adamw`, `schedule`: the gradient moves the weights.

Where verl, TRL and ROLL do the same thing differently, a field of `conventions.Convention` says how. Everywhere a mask
chooses and never multiplies: what stands outside it may be NaN.

Letters: B rows (answers), T tokens, V vocabulary, N rows and tokens together, P prompts, G answers to one prompt.
"""

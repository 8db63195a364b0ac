"""The algorithms, as functions on tensors (the optimizer alone has a state). docs/TRAINER.md has the order of a step.

Where verl, TRL and ROLL differ, a field of `conventions.Convention` selects the variant. Masks select and never
multiply: values outside of a mask may be NaN.

Letters: B rows (answers), T tokens, V vocabulary, N rows and tokens together, P prompts, G answers to one prompt.
"""

"""Pure functions on tensors: advantages, policy loss, divergence, packing and the optimizer's rule."""

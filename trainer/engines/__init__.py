"""What makes answers: `base.Engine` is the seam, `builtin.Sampler` the one that runs everywhere."""

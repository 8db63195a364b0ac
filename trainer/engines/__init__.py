"""What makes answers: `base.Engine` is the seam, `builtin.BuiltinEngine` the one that runs everywhere."""

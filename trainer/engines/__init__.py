"""What makes answers: `engine.Engine` is the interface, `engine.BuiltinEngine` the one that runs everywhere."""

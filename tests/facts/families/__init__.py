"""Which function reads the cases of which folder, by group of facts."""

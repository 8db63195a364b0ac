"""Request and matrix to a Stack, or a Conflict; with why, and why not newer, for each pin."""

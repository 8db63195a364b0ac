"""Checks of the target Python and its packages."""

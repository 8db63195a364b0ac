"""Checks of the session's environment variables."""

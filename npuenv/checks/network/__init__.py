"""Checks of the cards' network and of the host's network."""

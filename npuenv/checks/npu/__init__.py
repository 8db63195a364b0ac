"""Checks of the cards, their device nodes and their driver."""

"""Checks of CANN and NNAL."""

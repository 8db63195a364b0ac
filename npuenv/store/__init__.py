"""Environments on disk: where they lie, what each says of itself, which one is in force. Start from `places`."""

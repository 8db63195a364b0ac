"""Many nodes at once: which, how each is asked, and what they say. Start from `inventory.read` and `fanout.ask`."""

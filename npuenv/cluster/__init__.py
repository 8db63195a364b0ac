"""Many nodes at once: the inventory, ssh to all of them, and what they report."""

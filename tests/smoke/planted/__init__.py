"""Faults that are planted in copies of the trainer's source, and what the verdict says of them."""

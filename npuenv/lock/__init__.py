"""Complete, hashed locks of the Python packages of a stack."""

"""Package indexes: pages, files and metadata, read with pip's settings."""

"""Model architectures and their registry."""

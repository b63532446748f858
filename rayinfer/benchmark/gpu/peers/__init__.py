"""Comparison with other implementations on the same card and requests: transformers, and a minimal loop."""

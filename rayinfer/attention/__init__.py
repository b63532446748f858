"""Attention over the paged cache, and the description of a batch that it needs."""

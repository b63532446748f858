"""Beam search: sequences that are extended side by side, by one-token requests whose prefixes are cached."""

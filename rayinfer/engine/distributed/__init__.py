"""Executors of engines with several ranks."""

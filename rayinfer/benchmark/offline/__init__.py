"""Offline throughput beside plain transformers."""

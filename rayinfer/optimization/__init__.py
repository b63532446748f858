"""Quantization and packing of a loaded model before it runs, and a cache of the results."""

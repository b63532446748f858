"""CUDA graphs of whole decode steps."""

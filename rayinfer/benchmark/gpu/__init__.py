"""Benchmark of the engine against a GPU's roofline: `python -m rayinfer.benchmark.gpu`, or `rayinfer bench gpu`."""

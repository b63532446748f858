"""Comparison of rayinfer with its alternatives: the same workloads and cores, interleaved in one run."""

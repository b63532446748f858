"""Roofline benchmark of the CPU kernels."""

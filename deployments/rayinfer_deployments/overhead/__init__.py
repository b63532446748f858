"""Benchmark of the control plane between engines and clients, deployed with engines that have no model."""

"""Predictors beside their peers: throughput, latency, faults and caches."""

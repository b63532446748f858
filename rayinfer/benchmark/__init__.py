"""Reproducible benchmarks: the engine offline, a peer on the same workload, any OpenAI-compatible server."""

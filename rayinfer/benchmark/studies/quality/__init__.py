"""Perplexity of quantized weights and caches."""

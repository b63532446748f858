"""Sampling in Triton: penalties, thresholds and draws."""

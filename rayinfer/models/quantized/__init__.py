"""Checkpoints whose matrices were quantized by others, as they were published."""

"""Megatron-LM's `PUT /api`."""

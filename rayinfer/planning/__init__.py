"""Capacity planning: memory, times and number of engines, from a model's shape and measured efficiencies."""

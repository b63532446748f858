"""Predictions for every protocol: inputs to items within the limits, and items to their outputs."""

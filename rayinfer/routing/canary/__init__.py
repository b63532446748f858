"""Canary releases: a share of a model's requests goes to another served model, until it is promoted or rolled back."""

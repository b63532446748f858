"""Checklist of a model before it is served: each check measures the loaded model."""

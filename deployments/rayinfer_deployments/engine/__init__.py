"""Serve replicas and Ray actors of engines."""

"""Recordings of an engine's schedule, and their repetition."""

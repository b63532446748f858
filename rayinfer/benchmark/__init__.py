"""Measurements anyone can repeat: the engine offline, a peer on the same work, any OpenAI-compatible server."""

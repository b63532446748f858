"""API keys, their limits and usage; without Ray, HTTP or an engine."""

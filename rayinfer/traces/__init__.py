"""Request traces: recorded while requests run, and kept by a router for a while after."""

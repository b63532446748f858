"""Request traces, recorded while requests run and stored by the router for ten minutes."""

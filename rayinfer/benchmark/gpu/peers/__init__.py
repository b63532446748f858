"""Other implementations on the same card and the same requests as the engine: transformers, and a minimal loop."""

"""Vision encoders: images to embeddings in a language model's space."""

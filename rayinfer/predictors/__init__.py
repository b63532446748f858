"""Models that do not generate: embeddings, classification, relevance, images and models of tensors."""

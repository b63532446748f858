"""Text Embeddings Inference: embeddings, reranking and classification as its clients and those of the Hub call them."""

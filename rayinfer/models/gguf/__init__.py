"""GGUF files: headers, tensors, tokenizers and settings."""

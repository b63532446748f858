"""TGI's protocol: generation, tokenization and information."""

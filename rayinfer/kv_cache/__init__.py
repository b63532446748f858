"""The paged KV cache: block hashes, the block manager, the tensors."""

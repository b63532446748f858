"""Where keys and values of past tokens live: block hashes, the block manager, the tensors."""

"""Worker of one rank: weights, KV blocks, and the model runners that execute steps."""

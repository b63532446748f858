"""Memory of a rank: its weights, KV pools, and what is kept free of them."""

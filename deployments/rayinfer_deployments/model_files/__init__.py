"""Model folders that nodes get from each other."""

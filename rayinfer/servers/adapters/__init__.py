"""LoRA adapters of a service: their registry, folders that are watched, and the paths that change them."""

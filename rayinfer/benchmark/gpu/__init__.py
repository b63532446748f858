"""What a GPU reaches of its limits."""

"""LoRA adapters of a router: their settings, and the table that it shares with others."""

"""LoRA adapters in routing decisions."""

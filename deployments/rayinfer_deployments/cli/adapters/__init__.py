"""Commands for LoRA adapters: of a running service, and merged into checkpoints."""

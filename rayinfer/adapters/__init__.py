"""LoRA adapters: PEFT folders, checked against a model and laid out for its layers."""

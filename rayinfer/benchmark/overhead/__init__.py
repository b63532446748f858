"""What the way between engines and clients costs: decisions, messages, text, HTTP; without a model."""

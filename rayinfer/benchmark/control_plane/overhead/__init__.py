"""Control-plane overhead between engines and clients: decisions, messages, text, HTTP; without a model."""

"""Text to token ids and back, chat templates, and the one place where a stream's text is made; loads no torch."""

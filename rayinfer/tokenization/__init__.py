"""Text to token ids and back, chat templates, and incremental detokenization; loads no torch."""

"""Drafts of speculative decoding: guesses at a request's next tokens, and how many of them are worth a try."""

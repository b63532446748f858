"""Ollama's API, which desktop clients speak: chats, completions and lists of models."""

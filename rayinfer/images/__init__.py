"""Encoded images: their headers, their decoding in processes that may die, and their places in prompts."""

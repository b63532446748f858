"""Encoders: text models that read a text at once and do not generate, on tokens without padding."""

"""Runners by kind of model: encoders, decoders that are embedded with, images, and models of tensors."""

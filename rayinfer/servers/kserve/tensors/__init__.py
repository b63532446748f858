"""Tensors of the Open Inference Protocol: datatypes, shapes, and their forms in JSON and as bytes."""

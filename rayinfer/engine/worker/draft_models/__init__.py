"""A draft model beside the worker's own: its checks, weights and memory."""

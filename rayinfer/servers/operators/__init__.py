"""Paths of operators: states of engines, and commands on the whole service."""

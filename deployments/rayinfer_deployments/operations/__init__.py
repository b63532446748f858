"""Operators' commands for running services."""

"""Subcommands that operate running services."""

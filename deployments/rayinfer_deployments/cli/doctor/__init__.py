"""Subcommand that checks a machine."""

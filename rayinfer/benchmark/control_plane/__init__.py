"""Overhead of the scheduler, of ranks, and of the path of a token through the service."""

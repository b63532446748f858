"""Routing: dispatch of requests to engines, and the return of tokens; pure Python, no torch, no Ray."""

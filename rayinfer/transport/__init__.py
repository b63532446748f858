"""The line between a router and an engine in another process: requests one way, a message per step the other."""

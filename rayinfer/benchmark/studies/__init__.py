"""Studies of policies and of accuracy."""

"""The connection of a router to an engine in another process: requests out, a message per step back."""

"""`rayinfer top`: the live view of a service in a terminal."""

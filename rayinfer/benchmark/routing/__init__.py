"""What the router's order and its choice of engines are worth, on real engines."""

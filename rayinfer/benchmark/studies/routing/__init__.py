"""Effect of the router's priorities, fair sharing and prefix routing, on real engines."""

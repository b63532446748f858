"""What happened to requests: gathered while they run, and by a router kept for a while after."""

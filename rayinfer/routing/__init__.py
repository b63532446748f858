"""Which engine runs a request, and how its tokens find their way back: pure Python, no torch, no Ray."""

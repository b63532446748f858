"""The engine: requests, their schedule, and the loop that moves them forward."""

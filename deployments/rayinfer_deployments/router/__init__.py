"""The Serve deployment that clients talk to."""

"""The web interface: static files for browsers, and the samples of its live view."""

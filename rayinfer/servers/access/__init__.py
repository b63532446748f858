"""Access of HTTP clients: keys, limits in headers, usage and the access log."""

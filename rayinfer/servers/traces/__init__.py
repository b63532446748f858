"""Recent requests and their traces."""

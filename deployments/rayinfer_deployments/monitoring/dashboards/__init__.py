"""The dashboards, one a file."""

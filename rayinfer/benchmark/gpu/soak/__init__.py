"""Random load on an engine for minutes, after which nothing may be lost, held or leaked."""

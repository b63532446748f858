"""Ray clusters and the processes of one machine: settings, start, end, TLS and records of services."""

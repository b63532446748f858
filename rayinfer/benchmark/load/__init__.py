"""Load generators: workloads, clients and their reports."""

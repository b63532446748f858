"""Dashboards and alerts, made from the list of metrics."""

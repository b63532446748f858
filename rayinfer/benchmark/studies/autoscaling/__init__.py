"""Comparison of autoscaling policies, simulated over request traces."""

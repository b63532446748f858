"""Scheduler: admission, preemption, running requests and output processing."""

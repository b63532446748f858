"""Prometheus metrics of the service under the names of vLLM's and TGI's dashboards, and its own."""

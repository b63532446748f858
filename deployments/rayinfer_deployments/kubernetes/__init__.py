"""Manifests of a service for KubeRay, from one file."""

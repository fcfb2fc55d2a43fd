"""Reads the Kubernetes API: calls, list and watch, caches, and snapshots."""

"""Kubernetes objects from outside: snapshot files today, watch caches beside them."""

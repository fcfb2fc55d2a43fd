"""Runs the core's decisions against the current state of the cluster."""

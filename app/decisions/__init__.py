"""Runs the core's decisions against the current state of the cluster.

evaluator       evaluates pods, and fetches objects that no watch has delivered yet
"""

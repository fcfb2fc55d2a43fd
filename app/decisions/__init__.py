"""Runs the core's decisions against the current state of the cluster.

evaluator       evaluates pods, and fetches objects that no watch has delivered yet
state_source    where the state comes from: a snapshot file, or the live cluster
"""

"""Benchmarks: `python -m tests.bench` prints them as tables."""

"""Tests, by what they are about: core, property, golden, app, architecture; benchmarks in bench."""

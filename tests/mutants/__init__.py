"""Defects of the product, each with the tests that must notice it: `make mutants`."""

"""Test harness: reads recorded decisions of the real Longhorn and puts their questions to the engine."""

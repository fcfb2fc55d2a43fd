"""Test harness: reads recorded decisions of the real Longhorn and puts their questions to the engine.

scenario   a recorded scenario as a `Cluster`
questions  the questions, each answered by one function of the engine
"""

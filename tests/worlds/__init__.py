"""Worlds that tests set up: a state that tests change, clusters, clients and servers that several test modules share."""

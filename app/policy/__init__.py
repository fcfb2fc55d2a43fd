"""Reads the policy file, and decides which policy is in force."""

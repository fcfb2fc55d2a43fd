"""Reads the policy file, and decides which policy is in force.

file        reads the file again whenever its content changes
plugins     loads rules from outside the package, and contains their failures
in_force    which policy is in force, and whether it can be evaluated
"""

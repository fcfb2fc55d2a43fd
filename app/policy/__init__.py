"""Reads the policy file, and decides which policy is in force.

plugins     loads rules from outside the package, and contains their failures
in_force    reads the file again whenever its content changes; which policy is in force, and whether it can be evaluated
"""

"""JSON answers of the HTTP API as pydantic models, and what the commands have in common with it.

decision          /explain and `explain` for a pod, /decisions, the policy as a part of /state; why a value is refused
state             /state
remedies_answer   a remedy with its commands
"""

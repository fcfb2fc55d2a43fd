"""JSON answers of the HTTP API as pydantic models, and what the commands have in common with it.

explain           /explain, and `explain` for a pod
decision_answer   /decisions
state             /state
policy            the policy, a part of /state
remedies_answer   a remedy with its commands
value_problem     why a value is refused
"""

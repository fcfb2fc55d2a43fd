"""JSON answers as pydantic models.

explain    /explain, and `explain` for a pod
volume     `explain` for a volume
state      /state
policy     the policy, a part of /state
value_problem  why a value is refused
"""

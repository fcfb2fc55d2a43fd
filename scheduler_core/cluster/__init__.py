"""The cluster as immutable values, and how one follows another.

view        a snapshot with the look-ups that a decision needs
free_space  bytes that each disk can still take
update      the next view from the previous one and what changed
nodes_by_name  nodes in the order of their names
multimap    groups of values per key in a persistent map
"""

"""The cluster as immutable values, and how one follows another.

view        a snapshot with the look-ups that a decision needs
free_space  bytes that each disk can still take, and the growth that claims request
update      the next view from the previous one and what changed
"""

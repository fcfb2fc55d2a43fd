"""Bin packing of volumes onto the disks of a node. Disks differ in size, and a volume may use only some of them.

The package answers three questions: whether the volumes fit the disks together, whether every order of placing them
succeeds, and whether it does so on outdated status. The first two end with UNDECIDED when the search budget ends; all
other answers are exact. All sizes are bytes.

Callers use `feasible` (is there a packing), `spread` (the same for replicas that must stay apart), `order_safe` (can
a placement order fail, also on outdated status), `items` (volume sizes,
prepared once) and `budget` (search steps, their fair division, the three answers). Inside, `exact_search` decides over the
table of `patterns`, and finds packings where that table would be too large. `blocking` solves the problem that order safety
comes down to. Searches raise OutOfStepsError where the budget or the limits of a table end them. `give_way` (`budget`) lets what is urgent go before a long computation, here and in other packages.
"""

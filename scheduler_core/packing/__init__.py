"""Whether volumes fit a node's disks jointly, and whether every order of placing them succeeds. All sizes are bytes.

Callers use `feasible` (is there a packing), `order_safe` and `safe_many` (can Longhorn's own order fail) and `budget`.
Inside, `solve` is the ladder from cheap to expensive: `reduce` takes out what is forced, `greedy` tries, `bounds` proves
that nothing fits, `search` over the table of `fills` decides, and `refill` shrinks what is too large for that. `quick`
answers what needs none of it; `cover` is the question that order safety comes down to.
"""

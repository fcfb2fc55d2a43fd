"""What people look at: nodes with disks, waiting pods, and totals.

node_rows        one row per node, worst first; rows by text and by zone
waiting_rows     one row per waiting pod, with the node that comes closest to taking it
candidate_order  the nodes of a decision, the closest first
report           everything of one state that the status page and the command `top` show
row_page         a part of many rows
"""

"""What people look at: nodes with disks, waiting pods, and totals.

node_rows  one row per node, worst first; rows by text and by zone
report     everything of one state that the status page and the command `top` show; one row per waiting pod
row_order  the order and the pages of rows
"""

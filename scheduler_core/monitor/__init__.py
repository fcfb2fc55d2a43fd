"""What people look at: nodes with disks, waiting pods, and placements that went wrong.

demand_monitor       demand that was misplaced, is hopeless or stuck
overbooking_monitor  disks that placements overbooked
capacity_report      which numbers of disks and nodes people see
node_rows            one row per node, worst first; rows by text and by zone; the order and the pages of rows
report               everything of one state that the status page and the command `top` show; one row per waiting pod
"""

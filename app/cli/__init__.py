"""The command line, one module per command.

main              the entry point, and the exit code of every command
serve             the HTTP service
explain           why a pod or a volume's replica does or does not fit
explain_tables    the tables that `explain` prints
doctor            whether the extender protects a cluster, and what to mend
scheduler_registration  the file that registers the extender with kube-scheduler
schedule          the stand-alone scheduler, for a snapshot or a live cluster
snapshot          writes the live cluster to a file
disk_schedule     the DiskSchedule controllers
options           flags that commands share
"""

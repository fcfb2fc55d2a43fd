"""The command line, a module for each command, or two (`commands`: which).

main              the entry point
commands          every command, by what it is for; exit codes
options           flags that commands of every kind share
cluster_source    what asking and planning commands ask about; the pods and workloads that arguments name
render            what they print, and the one place that writes
escaping_console  tables and lines for people, escaped
"""

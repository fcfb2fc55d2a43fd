"""The command line, one module per command.

main            the entry point
commands        every command, by what it is for; exit codes
options         flags that commands share
serve_options   the flags of `serve`, and its configuration file
explain_tables  the tables that `explain` prints
"""

"""Offers: nodes that were returned to kube-scheduler for a pod, outstanding until the pod's placement is observed.

events             what changes the ledger: requests, observed pods, ends, time
outstanding_offer  one offer and when it ends
ledger             the outstanding offers as a pure state machine
handover_record    the offers as a leader records them for its successor
ordered_set        a persistent ordered set
"""

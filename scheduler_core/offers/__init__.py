"""Offers: nodes that were returned to kube-scheduler for a pod, outstanding until the pod's placement is observed.

outstanding_offer  one offer and when it ends; the events that change the ledger
ledger             the outstanding offers as a pure state machine, and the size of a burst
handover_record    the offers as a leader records them for its successor
"""

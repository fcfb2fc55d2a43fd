"""Offers: nodes that were returned to kube-scheduler for a pod whose placement has not been observed yet.

events       what changes the ledger: requests, observed pods, ends, time
ledger       the outstanding offers as a pure state machine
ordered_set  a persistent ordered set
"""

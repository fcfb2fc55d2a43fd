"""The pure half: decides where pods and replicas can go.

It has no I/O, no clock and no Kubernetes client.
"""

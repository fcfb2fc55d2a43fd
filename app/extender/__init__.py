"""Program 1: the scheduler extender that kube-scheduler calls.

verbs                 filter, prioritize, preempt and explain
availability          whether requests may be answered now
offers                `reservation: capacity`: what pods were offered counts for other pods
node_reservation      `reservation: node`: a pod's node takes no other pod's volumes for a while
placements            whether Longhorn places the volumes of decided pods, where, and which disks it overbooks
nudger                makes kube-scheduler retry refused pods that would fit now
refusals              the refused pods that the nudger remembers
endpoint_publisher    points the Service to the leader, and keeps it so
certificates          TLS of a port, from files or a Secret, read again when it changes
guard                 reviews placements; guard_certificate and guard_endpoint make it callable
lifecycle             when this process competes and answers: takeover, handover, shutdown
metrics               metrics for Prometheus
installation_reader   the facts that `doctor` judges
probe                 a pod that fits nowhere, to see whether kube-scheduler calls the extender
scheduler_reader      how kube-scheduler runs, and where it can call the extender
"""

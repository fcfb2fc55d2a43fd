"""Program 1: the scheduler extender that kube-scheduler calls.

verbs                   filter, prioritize, preempt and explain
offers                  `reservation: capacity`: what pods were offered counts for other pods
whole_node_reservation  `reservation: node`: a pod's node takes no other pod's volumes for a while
offer_store             the record of offers: a ConfigMap that the leader writes and its successor reads
pods_with_offers        the pods that have offers, and which of them have changed
placement_monitor       whether Longhorn places the volumes of decided pods, where, and which disks it overbooks
nudger                  makes kube-scheduler retry refused pods that would fit now
endpoint_publisher      points the Services of extender and placement guard to a process, and keeps them so
certificates            TLS of a port, from files or a Secret, read again when it changes
guard                   reviews placements; guard_certificate makes it callable
leadership_lifecycle    when this process competes and answers: takeover, handover, shutdown
status_page_results     what the status page shows, worked out where no decision waits
metrics                 metrics for Prometheus
node_loss_prediction    which nodes can be lost, and metrics of disk space
doctor_reader           the facts that `doctor` judges
process_calls           calls of the processes of kube-scheduler and extender; a pod that fits nowhere, to see whether the one calls the other
"""

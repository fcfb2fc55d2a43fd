"""What the scheduler extender answers about a pod. ResolutionError says that an object that the pod names does not exist or contradicts it.

extender_settings       the extender's own settings and the proposal's three, each with its source
decision                options, contenders and the decision about one pod, and as the decision log keeps it
filter                  which nodes can hold all of a pod's volumes, stage by stage
explain                 plans and numbers behind a decision; `volume_sentences` about many nodes
offered_nodes           what is offered of a decision, and how offers end; which nodes are offered
nudge_limits            when a refused pod is retried
score_facts             a decision as the classic scheduler's rules read it
kube_scheduler_filters  the nodes that kube-scheduler refuses before it calls the extender
"""

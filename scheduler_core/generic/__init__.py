"""The classic scheduler: predicates filter nodes, priorities score them, a policy file selects and weights both. It
decides as Kubernetes 1.1 did (docs/generic-scheduler.md). Longhorn's own rules are in the same table, and so are
today's predicates, which a policy may name.

    cluster_state              the input: nodes with what their pods request, and services; what is kept from decision to decision
    cycle_state                one pod's scheduling cycle: values that several rules share, and facts about Longhorn's volumes
    predicates, priorities     the classic rules, Longhorn's, and predicates of later Kubernetes versions
    rule_registry              every rule by its name in a policy file, with what it reads
    plugin_rules               rules from outside the package
    policy, policy_file        which rules apply, with their arguments and weights; what a pod demands and none of them reads
    scheduler                  filter, prioritise, select; a policy's predicates as part of the extender's /filter
    vectors                    replays recorded decisions of Kubernetes
"""

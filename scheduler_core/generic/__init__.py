"""The classic scheduler: predicates filter nodes, priorities score them, a policy file selects and weights both. It
decides as Kubernetes 1.1 did (docs/generic-scheduler.md). Longhorn's own rules are in the same table, and so are
today's predicates, which a policy may name.

    cluster_state, node_info   the input: nodes, pods and services, with what each node's pods request
    rule_results               what rules said about nodes, kept until the node changes
    cycle_state                one pod's scheduling cycle: values that several rules share
    predicates, priorities     the classic rules
    current_predicates         predicates of later Kubernetes versions about one node
    topology_predicates        predicates of later Kubernetes versions about groups of nodes
    longhorn_rules             this project's rules, computed from longhorn_facts
    rule_registry              every rule by its name in a policy file
    rule_inputs                what each rule reads
    foreign_rules              names of later Kubernetes versions that are no rules here, with what to use
    plugin_rules               rules from outside the package
    policy, policy_file        which rules apply, with their arguments and weights
    unsupported_constraints    what a pod demands and no rule of the policy reads
    scheduler                  filter, prioritise, select
    policy_filter              a policy's predicates as part of the extender's /filter
    vectors                    replays recorded decisions of Kubernetes
"""

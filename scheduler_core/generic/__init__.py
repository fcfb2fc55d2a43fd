"""The classic scheduler: predicates filter nodes, priorities score them, a policy file selects and weights both.

It decides as Kubernetes 1.1 did (docs/generic-scheduler.md), and has Longhorn's own rules in the same table.

    model, state            what is read: nodes, pods and services, with what each node has left
    predicates, priorities  the classic rules; longhorn: this project's
    registry                every rule by the name a policy calls it
    policy, policy_file     which rules, with what arguments and weights
    scheduler               filter, prioritise, select
    vectors                 replays recorded decisions of Kubernetes
"""

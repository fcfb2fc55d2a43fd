"""Whether an installation of the extender protects its cluster, and how the extender is registered.

facts                  the facts about an installation, and a finding
diagnosis              every check, in the order of the output; those of the extender itself and of Longhorn
scheduler_checks       checks of kube-scheduler, and what its events reveal
kube_scheduler_config  the configuration that registers the extender
"""

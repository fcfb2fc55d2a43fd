"""Finds changes of the cluster that help pods, each checked by the production decision.

Data flow of `remedies.py`: a pod that fits nowhere → changes that may help (`setting_steps.py`, `disk_space_steps.py`), the cheapest
first → each is applied to a `PredictedCluster` (`remedy_step.py`) and decided (`trials.py`) → what helps is a `Remedy` (`remedy.py`).
"""

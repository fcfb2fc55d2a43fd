"""scheduler_core.extender"""

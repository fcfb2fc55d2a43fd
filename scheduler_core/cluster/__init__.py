"""scheduler_core.cluster"""

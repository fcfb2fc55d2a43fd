"""scheduler_core.evaluation"""

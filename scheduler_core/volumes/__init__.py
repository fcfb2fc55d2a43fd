"""scheduler_core.volumes"""

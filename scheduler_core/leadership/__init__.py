"""scheduler_core.leadership"""

"""scheduler_core.offers"""

"""scheduler_core.demand.derive"""

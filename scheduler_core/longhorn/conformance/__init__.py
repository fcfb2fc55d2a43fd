"""scheduler_core.longhorn.conformance"""

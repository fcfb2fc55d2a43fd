"""app.runtime"""

"""app.policy"""

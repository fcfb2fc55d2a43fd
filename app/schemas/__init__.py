"""app.schemas"""

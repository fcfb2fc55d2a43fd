"""app.decisions"""

"""JSON answers as pydantic models."""

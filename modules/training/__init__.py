"""Runs on one device and on many: three programs, and rooms whose imports point down (pyproject.toml: rooms)."""

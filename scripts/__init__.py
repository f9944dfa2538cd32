"""Thin entry points, each started by its path: python scripts/NAME.py."""

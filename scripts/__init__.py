"""Thin entry points, each started by its path, python scripts/NAME.py, or as a command of `tandem`."""

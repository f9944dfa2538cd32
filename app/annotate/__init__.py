"""Captions, tags and masks proposed by models: the process, the proposals and their review."""

"""Backups in the background, in one piece or in parts, and the one that a start resumes from."""

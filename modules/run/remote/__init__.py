"""Runs on another machine, over ssh: what is sent there, what follows them, and what comes back."""

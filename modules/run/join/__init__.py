"""Joining a run from another machine with one copied line: authentication, comparison with machine 0, common start."""

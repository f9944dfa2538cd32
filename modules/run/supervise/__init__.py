"""Starting a run, supervising its processes, and reporting its outcome."""

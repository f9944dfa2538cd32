"""What a run has reported so far, built from its events: for the window, the terminal and the report."""

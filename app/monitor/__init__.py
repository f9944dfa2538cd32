"""The monitor: curves, processes, samples, log, and the list of runs."""

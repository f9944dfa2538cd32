"""What one sees of runs: curves, ranks, pictures, log, and the runs there are."""

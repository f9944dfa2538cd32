"""What is learned from runs of the loop: parity, the largest batch, a benchmark's steps, a profile."""

"""Slurm: what a job is asked for, its batch script, submitting it, and what srun says to a process."""

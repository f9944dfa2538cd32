"""Slurm: the resources of a job, its batch script, submitting it, and the environment that srun gives a process."""

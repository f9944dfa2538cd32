"""What jobs of Slurm and Kubernetes have in common: the config of a job, its time limit, the command that takes it."""

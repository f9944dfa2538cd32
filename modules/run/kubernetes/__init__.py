"""Kubernetes: the pods of a job, the paths of a config in their volumes, its manifests, applying them."""

"""The optimizer's groups, its step, and the average of the weights."""

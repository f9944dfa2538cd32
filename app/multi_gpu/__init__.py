"""The GPUs of this machine, a summary of the multi-GPU settings, and the launch commands."""

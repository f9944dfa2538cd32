"""The GPUs of this machine and what becomes of the settings on several of them."""

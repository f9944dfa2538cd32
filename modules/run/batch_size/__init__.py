"""The search for the largest batch size: what is asked, how its processes are started, what they found. Torch-free."""

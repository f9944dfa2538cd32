"""The training loop on one device and on many."""

"""What a run keeps in the memory of a device and of the host: found beforehand, measured, and moved there."""

"""What a run keeps in the memory of a device and of the host, and when: found before anything is loaded."""

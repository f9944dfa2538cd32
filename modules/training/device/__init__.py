"""The device of a process: its choice, its precision, and the host memory that is copied to it."""

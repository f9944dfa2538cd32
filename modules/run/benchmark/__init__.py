"""The benchmark of a config: its steps timed on one and on more devices, and with other batch sizes."""

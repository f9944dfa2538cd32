"""The run folder: events, commands, failures, logs and locks."""

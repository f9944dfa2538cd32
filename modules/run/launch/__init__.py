"""Planning a launch: processes, command lines, environment variables, restarts."""

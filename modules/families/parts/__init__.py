"""What families share by calling it; no family itself."""

"""The preflight report, and starting a preflight."""

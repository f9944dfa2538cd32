"""Forms generated from the declared settings."""

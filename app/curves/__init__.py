"""Small drawings beside the settings that they follow from."""

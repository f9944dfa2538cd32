"""Base models from the Hugging Face hub: which files, downloading them, errors as sentences."""

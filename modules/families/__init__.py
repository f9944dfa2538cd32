"""The interface of a model family and one file per family."""

"""The pictures of the concepts: what the folders hold, thumbnails, captions."""

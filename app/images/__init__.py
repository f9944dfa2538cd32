"""Image pages of the Data section: folder contents, thumbnails, captions."""

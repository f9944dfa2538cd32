"""Tools beside training: model files, near-duplicates, images as training sees them."""

"""What image classifiers are built from: networks, augmentation in loader workers, mixing, confusion counts."""

"""Models that caption, tag and mask images: finding and loading them, and asking them about each image of a folder."""

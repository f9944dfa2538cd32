"""A run from start to end: the trainers, what they set up, and what they tell."""

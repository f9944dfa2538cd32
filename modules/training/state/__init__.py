"""What a run is at any moment: its components, its plan, what it was asked for, and what a backup holds of it."""

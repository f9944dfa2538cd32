"""Within one step: its phases and metrics, what guards it, and what is due after it."""

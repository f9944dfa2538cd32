"""Files of a flow-matching transformer with the names of the model's own code: what is in them, and loading them."""

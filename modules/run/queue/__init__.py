"""The queue of a runs folder: configs that wait for the GPUs, and the process that works them off."""

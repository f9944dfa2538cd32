"""From a folder of pictures to batches whose order and draws depend on seed and position alone."""

"""The data path of a run: its index, cache, order and loader, which the ranks share."""

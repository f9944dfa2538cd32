"""From a folder of images to batches whose order and random draws depend on seed and position alone.

The path of an image, each step's result handed to the next (modules/training/data/dataset.py calls them in this order):
index/    `build_index`: scan the concept folders, read headers and captions, store one table of all images
cache/    `Cache.encode`, `Cache.load`: encode what is new into safetensors shards, find the tensors of every row
loading/  `make_order`: which rows each optimizer step takes; `make_loader`: the micro-batches of one rank, as `Batch`
"""

"""Data sets that come as one archive: `cifar` unpacks it once, into class folders that the index reads."""

"""One module for each kind of foreign input."""

from __future__ import annotations

from importlib import import_module

from tests.torture.kind import Kind

# those with cheap cases first
KINDS = {
    "configs": "other people's configs as JSON and YAML, and settings files of other trainers",
    "events": "what the window and the command line read of a run folder",
    "captions": "caption files",
    "metadata": "metadata.jsonl and metadata.csv",
    "archives": "CIFAR archives: the tar, its compression, the pickles in it",
    "shards": "tar archives and tables whose images are read in place",
    "runs": "run folders: resume, list, choice of the backup",
    "backups": "backups, with a manifest that fits",
    "caches": "cache folders: the index, the manifests and the shards",
    "store": "what other ranks put into the store",
    "loras": "LoRA files and embeddings",
    "images": "PNG, JPEG, WebP and BMP, and masks",
    "frames": "the bytes of a machine that joins, or of the one that it joins",
    "hosts": "a machine 0 that knows the token, and the machine that joins it, to the end of the run",
    "models": "model folders, single files and saved models",
    "published": "shards and their index, files in scaled fp8 and int8, and GGUF",
    "folders": "every file of the folders of base models, captioners and mask models",
    "conversions": "single files, layouts, model folders and LoRA, given to scripts/convert.py",
}


def load_kind(name: str) -> type[Kind]:
    """The fuzzer of a kind; imports what it reads with."""
    found: type[Kind] = import_module(f"tests.torture.kinds.{name}").Fuzzer
    return found

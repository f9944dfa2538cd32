"""A zip for a bug report: what a run did and on what, and nothing private: no images, captions or secrets."""

from modules.run.debug_package.contents import PackedFile, collect_parts, write_package

__all__ = ["PackedFile", "collect_parts", "write_package"]

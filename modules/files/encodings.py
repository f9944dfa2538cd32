"""Texts in another encoding than UTF-8: those with a mark at their start, and the ones that older programs write."""

from __future__ import annotations

import codecs
import re
from typing import Final

# The longest first: UTF-32's mark begins with UTF-16's.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_EXPECTED: Final = ["cp932", "gb18030", "cp1252"]  # of Windows in Japan, China and the West, with Shift-JIS and GBK
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_NEVER_UNMARKED: Final = ["utf_7", "utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be"]
SAMPLE: Final = 64 << 10  # bytes that the detector is given


def decode_unicode(data: bytes) -> str | None:
    """UTF-8 text, or UTF-16 or UTF-32 text with its byte order mark; None if it is neither."""
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None


def find_encoding(sample: bytes) -> str:
    """The encoding that bytes are likely to be text in, as Python names it; empty if they are no text.

    Short texts are in several encodings something that looks like text, so the expected ones are tried first.
    """
    if _NO_TEXT.search(sample):
        return ""
    from charset_normalizer import from_bytes  # takes 30 ms

    found = from_bytes(sample, cp_isolation=_EXPECTED).best() or from_bytes(sample, cp_exclusion=_NEVER_UNMARKED).best()
    return "" if found is None else found.encoding

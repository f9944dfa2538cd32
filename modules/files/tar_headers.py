"""The headers of a tar archive: POSIX.1-1988 ustar, with the long names of GNU tar and the records of pax."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from modules.files.opening import FileFault

BLOCK: Final = 512  # bytes: headers and data begin at multiples of it
MAX_EXTENDED: Final = 1 << 20  # bytes of a header that extends the next one
REGULAR: Final = (b"0", b"\0", b"7")
WITHOUT_DATA: Final = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders: their size says something else
EXTENDED: Final = (b"L", b"K", b"x", b"X", b"g")
SPARSE: Final = b"S"
FOLDER: Final = b"5"
_USTAR: Final = b"ustar\0"
# pax records are "LENGTH key=value"
_PAX_PATH: Final = re.compile(rb"(?:\A|\n)\d{1,9} path=([^\n]*)\n")
_PAX_SIZE: Final = re.compile(rb"(?:\A|\n)\d{1,9} size=(\d{1,18})\n")
_PAX_SPARSE: Final = re.compile(rb"(?:\A|\n)\d{1,9} GNU\.sparse\.")


@dataclass(frozen=True)
class TarHeader:
    """One header; `size` is the number of bytes of data that follow, if any do."""

    name: bytes
    size: int
    kind: bytes


@dataclass(frozen=True)
class Extension:
    """What extended headers say of the file after them."""

    name: bytes = b""
    size: int | None = None
    is_sparse: bool = False

    def extended(self, kind: bytes, data: bytes) -> Extension:
        """With what the data of one more of them says."""
        if kind == b"L":
            return Extension(data.rstrip(b"\0") or self.name, self.size, self.is_sparse)
        if kind not in (b"x", b"X"):
            return self
        name, size = _PAX_PATH.search(data), _PAX_SIZE.search(data)
        return Extension(
            name[1] if name else self.name,
            int(size[1]) if size else self.size,
            self.is_sparse or _PAX_SPARSE.search(data) is not None,
        )


def parse_tar_header(block: bytes) -> TarHeader | None:
    """The header in a block; None for the end, a block of zeros. Raises FileFault if it is damaged."""
    if not block.strip(b"\0"):
        return None
    # the sum of all bytes, those of the sum itself counted as blanks
    if sum(block[:148]) + sum(block[156:]) + 8 * ord(" ") != _number(block[148:156]):
        raise FileFault("is damaged (a checksum of the tar archive does not match)")
    name, prefix = (part.split(b"\0", 1)[0] for part in (block[:100], block[345:500]))
    if prefix and block[257:263] == _USTAR:
        name = prefix + b"/" + name
    return TarHeader(name, _number(block[124:136]), block[156:157])


def _number(field: bytes) -> int:
    """Octal digits, or with the highest bit set a binary number, which GNU tar writes for large ones."""
    if field[0] & 0x80:
        number = int.from_bytes(field, "big", signed=True) if field[0] == 0xFF else int.from_bytes(field[1:], "big")
    else:
        digits = field.split(b"\0", 1)[0].strip()
        if not all(digit in b"01234567" for digit in digits):
            raise FileFault("is damaged (a number of the tar archive has other digits)")
        number = int(digits or b"0", 8)
    if number < 0:
        raise FileFault("is damaged (a size of the tar archive is negative)")
    return number

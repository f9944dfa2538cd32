"""Folders of images packed into shards, whose files have the same paths below a concept as the folders'."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def pack_tar(folder: Path, archive: Path, **options: Any) -> Path:
    """The files of a folder, with their paths below it."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(tar_of({file.relative_to(folder).as_posix(): file.read_bytes() for file in files}, **options))
    return archive


def tar_of(files: Mapping[str, bytes], **options: Any) -> bytes:
    """A tar archive with these files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", **options) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def zip_of(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED, **options: Any) -> bytes:
    """A zip archive with these files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method, **options) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def pack_zip(folder: Path, archive: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """The files of a folder, with their paths below it."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(zip_of({file.relative_to(folder).as_posix(): file.read_bytes() for file in files}, method))
    return archive


def two_shards(images: Path, target: Path) -> tuple[Path, Path]:
    """The files of `images`, half of them in a tar and a zip archive, and the same as folders with these names."""
    packed, unpacked = target / "packed", target / "unpacked"
    stems = sorted({file.stem for file in images.glob("*.txt")})
    for number, some in enumerate((stems[::2], stems[1::2])):
        folder = unpacked / f"{number:05d}.{('tar', 'zip')[number]}"
        folder.mkdir(parents=True)
        for file in images.iterdir():
            if file.stem.removesuffix("-masklabel") in some:
                shutil.copy(file, folder)
        (pack_tar, pack_zip)[number](folder, packed / folder.name)
    return packed, unpacked

"""Images that end too early are recognised without decoding them; whole ones never are."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from modules.files.images import is_truncated

FORMATS = [
    ("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("WEBP", {"lossless": True}), ("BMP", {}),
]  # fmt: skip


def encoded(kind: str, mode: str = "RGB", **options: object) -> bytes:
    noise = Image.effect_noise((333, 257), 60).convert(mode)
    file = io.BytesIO()
    noise.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(("kind", "options"), FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_cut_files_are_found(tmp_path: Path, kind: str, options: dict[str, object], mode: str) -> None:
    data, file = encoded(kind, mode, **options), tmp_path / "image"
    file.write_bytes(data)
    assert not is_truncated(file)
    for share in (0.3, 0.7, 0.99):
        file.write_bytes(data[: int(len(data) * share)])
        assert is_truncated(file), share


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_appended_data_is_no_fault(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "image"
    appended = 30_000 if kind == "PNG" else 3_000_000  # as the film in a photo of a telephone
    file.write_bytes(encoded(kind) + b"\0" * appended)
    assert not is_truncated(file)


def test_end_of_a_thumbnail_is_not_that_of_the_image(tmp_path: Path) -> None:
    whole = encoded("JPEG", comment=b"a thumbnail \xff\xd9 ends")
    file = tmp_path / "image"
    file.write_bytes(whole)
    assert not is_truncated(file)
    file.write_bytes(whole[:-100])
    assert is_truncated(file)
    file.write_bytes(b"\xff\xd8\xff")
    assert is_truncated(file)


@pytest.mark.parametrize("mode", ["1", "P", "RGBA"])
def test_all_kinds_of_bmp_are_whole(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "image"
    file.write_bytes(encoded("BMP", mode))
    assert not is_truncated(file)

"""The index: what is found, what is skipped and reported, and what is opened again at the next start."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from modules import ROOT
from modules.config import DataError, TandemError
from modules.data.index import concept_rows, journal
from modules.data.index.build import build_index, changed_index, store_index
from modules.data.index.captions import Captions
from modules.data.index.column_store import Column, map_columns
from modules.data.index.images import read_image_size
from modules.data.index.index import Index, load_index
from modules.data.index.journal import Journal
from modules.data.index.problems import write_problems
from tests.data.helpers import config_for, index_of, write_image


def names(index: Index) -> list[str]:
    return [index.relative_path(row) for row in range(len(index))]


def problems_by_name(index: Index) -> dict[str, str]:
    return {os.path.basename(problem.path): problem.what for problem in index.problems()}


def test_rows_are_sorted_by_concept_and_path(tmp_path: Path) -> None:
    for name in ("b.png", "sub/a.jpg", "a.webp", "Z.BMP", ".hidden.png", ".git/x.png"):
        write_image(tmp_path / "one" / name, 64, 32)
    write_image(tmp_path / "two" / "a.png")
    index = index_of(config_for(tmp_path / "two", tmp_path / "one", cache=tmp_path / "c"), tmp_path / "c")
    assert names(index) == ["a.png", "Z.BMP", "a.webp", "b.png", "sub/a.jpg"]
    assert index.concept.tolist() == [0, 1, 1, 1, 1]
    assert index.width.tolist() == [40, 64, 64, 64, 64]
    assert [Path(path) for path in index.files()] == [Path(index.file(row)) for row in range(5)]
    assert index.file(4) == str(tmp_path / "one/sub/a.jpg")
    assert copy.copy(index).captions(1) == ("Z",)


def test_subfolders_are_optional(tmp_path: Path) -> None:
    write_image(tmp_path / "d/sub/a.png")
    write_image(tmp_path / "d/b.png")
    config = config_for(tmp_path / "d", cache=tmp_path / "c", include_subfolders=False)
    assert names(index_of(config, tmp_path / "c")) == ["b.png"]


def test_strange_names_work(tmp_path: Path) -> None:
    strange = ["two words.png", "new\nline.png", "日本語 ü.png", "100%_'quoted'.png"]
    for name in strange:
        write_image(tmp_path / "d\u00fc x y" / name)
    with open(os.fsencode(tmp_path / "d\u00fc x y") + b"/not-utf8-\xff.png", "wb") as file:
        file.write(write_image(tmp_path / "p.png").read_bytes())
    config = config_for(tmp_path / "d\u00fc x y", cache=tmp_path / "c")
    index = index_of(config, tmp_path / "c")
    assert sorted(names(index)) == sorted([*strange, "not-utf8-\udcff.png"])
    captions = {names(index)[row]: index.captions(row) for row in range(5)}
    assert captions["new\nline.png"] == ("new line",)
    assert captions["not-utf8-\udcff.png"] == ("not-utf8-\ufffd",)
    write_problems([*index.problems()], tmp_path / "problems.txt")
    assert not (tmp_path / "problems.txt").exists()


def test_circular_links_end(tmp_path: Path) -> None:
    write_image(tmp_path / "d/a.png")
    (tmp_path / "d/loop").symlink_to(tmp_path / "d", target_is_directory=True)
    (tmp_path / "d/again").symlink_to(tmp_path / "d/loop", target_is_directory=True)
    write_image(tmp_path / "elsewhere/b.png")
    (tmp_path / "d/link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "d/gone.png").symlink_to(tmp_path / "nothing.png")
    os.mkfifo(tmp_path / "d/pipe.png")
    write_image(tmp_path / "d/folder.png/c.png")
    index = index_of(config_for(tmp_path / "d", cache=tmp_path / "c"), tmp_path / "c")
    assert names(index) == ["a.png", "folder.png/c.png", "link/b.png"]
    assert set(problems_by_name(index)) == {"gone.png", "pipe.png"}


def test_bad_files_are_reported_and_others_used(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write_image(folder / "good.png")
    (folder / "text.png").write_text("hello")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "short.png").write_bytes(write_image(tmp_path / "x.png").read_bytes()[:20])
    (folder / "anim.gif").write_bytes(b"GIF89a")
    (folder / "notes.md").write_text("not an image, and no problem")
    write_huge_png(folder / "huge.png")
    index = index_of(config_for(folder, cache=tmp_path / "c"), tmp_path / "c")
    found = problems_by_name(index)
    assert names(index) == ["good.png"]
    assert set(found) == {"text.png", "empty.jpg", "short.png", "anim.gif", "huge.png"}
    assert "huge" in found["huge.png"]
    assert "no image of a format" in found["text.png"]
    write_problems(index.problems(), tmp_path / "problems.txt")
    assert len((tmp_path / "problems.txt").read_text("utf-8").splitlines()) == 5
    assert "text.png: skipped: no image of a format" in (tmp_path / "problems.txt").read_text()
    again = index_of(config_for(folder, cache=tmp_path / "c"), tmp_path / "c")
    assert problems_by_name(again) == found


def test_a_name_with_escape_codes_is_shown(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/bad\x1b[2J\nx.png").write_text("hello")
    write_image(tmp_path / "d/good.png")
    index = index_of(config_for(tmp_path / "d", cache=tmp_path / "c"), tmp_path / "c")
    write_problems(index.problems(), tmp_path / "problems.txt")
    (line,) = (tmp_path / "problems.txt").read_text("utf-8").splitlines()
    assert "bad\\x1b[2J\\nx.png: skipped" in line
    assert "\x1b" not in line


def write_huge_png(path: Path) -> None:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"") + chunk(b"IEND", b""))


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    write_image(tmp_path / "d/a.png")
    write_image(tmp_path / "d/b.png").chmod(0)
    index = index_of(config_for(tmp_path / "d", cache=tmp_path / "c"), tmp_path / "c")
    assert "cannot be read" in problems_by_name(index)["b.png"]


def test_exif_rotation_swaps_width_and_height(tmp_path: Path) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "d").mkdir()
    for name in ("a.jpg", "b.webp", "c.png"):
        Image.new("RGB", (60, 20)).save(tmp_path / "d" / name, exif=exif)
    index = index_of(config_for(tmp_path / "d", cache=tmp_path / "c"), tmp_path / "c")
    assert [(int(w), int(h)) for w, h in zip(index.width, index.height, strict=True)] == [(20, 60)] * 3


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda folder: None, "does not exist"),
        (lambda folder: folder.write_text(""), "is a file"),
        (lambda folder: folder.mkdir(), "0 files seen"),
        (lambda folder: (folder.mkdir(), (folder / "a.gif").write_text("")), r"1 x \.gif"),
        (lambda folder: (folder.mkdir(), (folder / "a.png").write_text("hi")), "no image of a format"),
    ],
)
def test_nothing_to_train_on_raises_one_sentence(tmp_path: Path, prepare: Any, words: str) -> None:
    prepare(tmp_path / "d")
    with pytest.raises(DataError, match=words) as caught:
        index_of(config_for(tmp_path / "d", cache=tmp_path / "c"), tmp_path / "c")
    assert str(tmp_path / "d") in str(caught.value)
    assert caught.value.exit_code == 4


def test_no_concepts_and_only_validation_are_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "d/a.png")
    with pytest.raises(DataError, match="no concept"):
        index_of(config_for(cache=tmp_path / "c"), tmp_path / "c")
    with pytest.raises(DataError, match="no concept"):
        index_of(config_for(tmp_path / "d", cache=tmp_path / "c", enabled=False), tmp_path / "c")
    with pytest.raises(DataError, match="held out"):
        index_of(config_for(tmp_path / "d", cache=tmp_path / "c", kind="validation"), tmp_path / "c")


def test_unusable_cache_folder_raises_one_sentence(tmp_path: Path) -> None:
    write_image(tmp_path / "d/a.png")
    (tmp_path / "c").write_text("a file is in the way")
    with pytest.raises(TandemError, match="cache_dir"):
        index_of(config_for(tmp_path / "d", cache=tmp_path / "c"), tmp_path / "c")


def test_only_what_changed_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = tmp_path / "d", tmp_path / "c"
    for name in "abc":
        write_image(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(name)
    config = config_for(folder, cache=cache)
    first = index_of(config, cache)
    stamp = first.path.stat().st_mtime_ns
    opened: list[str] = []
    monkeypatch.setattr(
        concept_rows, "read_image_size", lambda path: (opened.append(Path(path).name), read_image_size(path))[1]
    )
    assert names(index_of(config, cache)) == ["a.png", "b.png", "c.png"]
    assert opened == []
    assert first.path.stat().st_mtime_ns == stamp
    write_image(folder / "b.png", 80, 40)
    write_image(folder / "d.png")
    (folder / "a.png").unlink()
    (folder / "c.txt").write_text("changed\nsecond")
    counted: list[tuple[int, int]] = []
    index = build_index(config, config.seed, 8, cache, lambda *done: counted.append(done))
    assert sorted(opened) == ["b.png", "d.png"]
    assert counted == [(2, 3), (3, 3)], "of all images, not of those that are opened"
    assert names(index) == ["b.png", "c.png", "d.png"]
    assert index.width.tolist() == [80, 40, 40]
    assert [index.captions(row) for row in range(3)] == [("b",), ("changed", "second"), ("",)]
    opened.clear()
    other = index_of(config.model_copy(update={"resolution": 64}), cache)
    assert opened == []
    assert other.path != index.path


def test_damaged_index_is_rebuilt(tmp_path: Path) -> None:
    write_image(tmp_path / "d/a.png")
    config = config_for(tmp_path / "d", cache=tmp_path / "c")
    path = index_of(config, tmp_path / "c").path
    whole = path.read_bytes()
    for damaged in (b"", b"xx", whole[:100], whole[:-4], b"\xff" * 200):
        path.unlink()
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="damaged"):
            load_index(path)
        assert names(index_of(config, tmp_path / "c")) == ["a.png"]
    with pytest.raises(DataError, match="cannot be read"):
        load_index(tmp_path / "nothing")


@pytest.mark.timeout(60)
def test_an_index_of_somebody_else_is_rebuilt(tmp_path: Path) -> None:
    write_image(tmp_path / "d/a.png")
    write_image(tmp_path / "d/b.png")
    config = config_for(tmp_path / "d", cache=tmp_path / "c")
    path = index_of(config, tmp_path / "c").path
    columns, header = map_columns(path)
    columns = {name: column.copy() for name, column in columns.items()}
    changes: list[dict[str, Column]] = [
        {"concept": np.array([0, 7], np.int32)}, {"concept": np.array([0], np.int32)}, {"bucket": columns["size"]},
        {"bucket": np.array([0, -1], np.int32)}, {"path_starts": np.array([0, 9, 1 << 63], np.uint64)},
        {"path_starts": np.array([9, 0, 10], np.uint64)}, {"caption_state": np.array([0, 99], np.uint8)},
        {"width": np.array([0, 40], np.int32)}, {"concept": np.zeros((2, 0), np.int32)}, {"mask_file": columns["size"]},
    ]  # fmt: skip
    files = [save({**columns, **change}, {"tandem": header}) for change in changes]
    headers = ["[" * 100_000, "[]", "null", '{"roots": 3}', header.replace('"origins": [', '"origins": ["x", ')]
    files += [save(columns, {"tandem": text}) for text in headers]
    for raw in ("[1]", '{"a": 1}', '{"a": {"dtype": "U8", "shape": [1' + "0" * 400 + '], "data_offsets": [0, 1]}}',
                '{"a": {"dtype": "U8", "shape": [0], "data_offsets": [-5, -5]}}', "[" * 100_000):  # fmt: skip
        files.append(len(raw).to_bytes(8, "little") + raw.encode() + b"12345678")
    for data in files:
        path.write_bytes(data)
        with pytest.raises(DataError, match="damaged"):
            load_index(path)
    with path.open("wb") as sparse:
        sparse.write((1 << 33).to_bytes(8, "little"))
        sparse.truncate(1 << 34)
    with pytest.raises(DataError, match="damaged"):
        load_index(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="a named pipe"):
        load_index(path)
    assert names(index_of(config, tmp_path / "c")) == ["a.png", "b.png"]


def test_validation_split_depends_on_seed_and_path(tmp_path: Path) -> None:
    for n in range(60):
        write_image(tmp_path / f"d/{n:02}.png", 8, 8)
    for n in range(5):
        write_image(tmp_path / f"few/{n:02}.png", 8, 8)

    def held_out(folder: str, **settings: object) -> list[list[str]]:
        """The names that each of the two concepts holds out."""
        folders = tmp_path / folder, tmp_path / "few"
        index = index_of(config_for(*folders, cache=tmp_path / "c", **{"validation_split": 0.3, **settings}), tmp_path)
        chosen = [(index.concept[row], index.relative_path(row)) for row in np.flatnonzero(index.validation).tolist()]
        return [[name for number, name in chosen if number == concept] for concept in range(2)]

    chosen = held_out("d")
    assert list(map(len, chosen)) == [18, 2], "exactly round(0.3 x 60) and round(0.3 x 5)"
    assert list(map(len, held_out("d", validation_split=0.1))) == [6, 0]
    assert set(held_out("d", validation_split=0.1)[0]) < set(chosen[0]), "those with the lowest hashes"
    for n in range(60, 80):
        write_image(tmp_path / f"d/{n:02}.png", 8, 8)
    more = held_out("d")
    assert list(map(len, more)) == [24, 2]
    assert len(set(chosen[0]) - set(more[0])) <= 4, "only at the border"
    (tmp_path / "d").rename(tmp_path / "moved")
    assert held_out("moved") == more
    assert held_out("moved", seed=7) != more


def test_a_run_of_0_2_0_keeps_its_validation_split(tmp_path: Path) -> None:
    for n in range(10):
        write_image(tmp_path / f"d/{n}.png", 8, 8)
    config = config_for(tmp_path / "d", cache=tmp_path / "c", validation_split=0.3)
    former = build_index(config, config.seed, 8, tmp_path / "c", by_image=False)
    assert former.validation.tolist() == [n in (1, 4, 5, 6, 7, 9) for n in range(10)], "more than half"
    now = index_of(config, tmp_path / "c")
    assert (int(now.validation.sum()), now.path == former.path) == (3, False)


def test_each_run_sees_the_changes_since_its_own_index(tmp_path: Path) -> None:
    config = config_for(tmp_path / "d", cache=tmp_path / "c")

    def changed(index: Index) -> Index | None:
        return changed_index(index, config, config.seed, 8)

    write_image(tmp_path / "d/a.png")
    mine = index_of(config, tmp_path / "c")
    write_image(tmp_path / "d/b.png")
    other = index_of(config, tmp_path / "c")  # of a run that starts now
    assert (other.path, changed(other)) == (mine.path, None)
    found = [changed(mine)]
    write_image(tmp_path / "d/c.png")
    found.append(changed(other))
    stored = []
    for index in found:
        assert index is not None
        store_index(index)
        stored.append(index.path)
    assert [names(load_index(path)) for path in stored] == [["a.png", "b.png"], ["a.png", "b.png", "c.png"]]
    assert changed(load_index(stored[1])) is None


def test_masks_are_not_images_and_must_fit(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    for name in ("same", "scaled", "other", "broken", "none"):
        write_image(folder / f"{name}.png", 40, 20)
    write_image(folder / "same-masklabel.png", 40, 20, mode="L")
    write_image(folder / "scaled-masklabel.png", 80, 40, mode="L")
    write_image(folder / "other-masklabel.png", 40, 40, mode="L")
    (folder / "broken-masklabel.png").write_text("no")
    plain = index_of(config_for(folder, cache=tmp_path / "c"), tmp_path / "c")
    assert len(plain) == 5
    assert plain.problems() == []
    masked = index_of(config_for(folder, cache=tmp_path / "c", masked_training=True), tmp_path / "c")
    assert names(masked) == ["none.png", "same.png", "scaled.png"]
    assert [masked.has_mask(row) for row in range(3)] == [False, True, True]
    found = problems_by_name(masked)
    assert "scaled" in found["scaled.png"]
    assert "another shape" in found["other.png"]
    assert "its mask" in found["broken.png"]
    assert len(found) == 3


KILLED = """
import os, signal, sys
from pathlib import Path
from modules.data.index import concept_rows, journal
from modules.data.index.build import build_index
from modules.data.index.captions import Captions
from tests.data.helpers import config_for
images, cache, stop_at = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
journal._FLUSH_S, concept_rows._THREADS = 0.0, 1  # so that none lags behind with a part of the files
find = Captions.find
def stop(self, path, **given):
    if path == stop_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return find(self, path, **given)
Captions.find = stop
def progress(done, total):
    if done == int(0.9 * total) and stop_at.isdecimal():
        os.kill(os.getpid(), signal.SIGKILL)
config = config_for(images, cache=cache)
build_index(config, config.seed, 8, cache, progress)
"""


@pytest.mark.parametrize("stop_at", ["90", "9/385.png"])
def test_a_scan_that_is_killed_goes_on_where_it_was(
    stop_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At nine tenths of the headers, or of the captions."""
    pixels = write_image(tmp_path / "one.png", 40, 24).read_bytes()
    for number in range(400):
        file = tmp_path / f"images/{number // 40}/{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pixels if number % 50 else b"no image")
        file.with_suffix(".txt").write_bytes("Käse".encode("cp1252") if number % 70 == 3 else b"image %d" % number)
    opened, caches = list[str](), (tmp_path / "killed", tmp_path / "whole")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "images"), str(caches[0]), stop_at]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert (caches[0] / journal.NAME).exists()
    monkeypatch.setattr(concept_rows, "read_image_size", lambda path: opened.append(path) or read_image_size(path))
    read = Captions._read_file
    monkeypatch.setattr(Captions, "_read_file", lambda *a, **given: opened.append(a[1]) or read(*a, **given))
    config = config_for(tmp_path / "images", cache=caches[0])
    resumed = index_of(config, caches[0])
    again, files = len(opened), len(resumed)
    whole = index_of(config, caches[1])
    assert len(opened) - again >= 400 + files
    most = {"90": 60 + files + 12, "9/385.png": 80}
    assert again < most[stop_at]
    assert whole.digest == resumed.digest
    assert whole.path.read_bytes() == resumed.path.read_bytes()
    assert not (caches[0] / journal.NAME).exists()
    (caches[0] / journal.NAME).write_text('{"sizes": [["x", 1]]}\n[]\nnothing\n{"sizes": [["x", 1, 1, -1, 5]]}\n')
    resumed.path.unlink()
    assert index_of(config, caches[0]).digest == whole.digest, "lines that are none are passed over"


@pytest.mark.parametrize("found", ['["x"], 200, 7', '["x"], 0, 7', '["\\udc80"], 0, 2'])
def test_a_journal_of_somebody_else_stops_no_start(tmp_path: Path, found: str) -> None:
    folder = write_image(tmp_path / "x" / "a.png").parent
    (folder / "a.txt").write_text("one")
    config, seen, whole = config_for(folder, cache=tmp_path / "c"), list[Any](), Journal.add_caption
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "add_caption", lambda *given: seen.append(given[1:4]) or whole(*given))
        digest = index_of(config, tmp_path / "c").digest
    origin, image, stamp = seen[0]
    text = f'{{"origin": {json.dumps(origin)}, "captions": [[{json.dumps(image)}, {stamp[0]}, {stamp[1]}, {found}]]}}\n'
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / journal.NAME).write_text(text)
    assert index_of(config, tmp_path / "d").digest == digest


def test_an_index_that_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    folder = write_image(tmp_path / "x" / "a.png").parent
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = [tmp_path / "c" / f".partial-{int(ended.stdout)}-index-{each}.safetensors" for each in ("old", "new")]
    left[0].parent.mkdir()
    for file in left:
        file.write_bytes(b"half")
    os.utime(left[0], (1, 1))
    index_of(config_for(folder, cache=tmp_path / "c"), tmp_path / "c")
    assert [file.exists() for file in left] == [False, True], "the new one may be another machine's"

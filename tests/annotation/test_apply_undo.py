"""Writing proposals beside images, and putting back exactly what was there."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from PIL import Image

from modules.annotation import Header, Mode, Proposal, ProposalSet, Task, apply_proposals, undo_proposals
from modules.annotation import apply as apply_module
from modules.annotation.combine import png
from modules.annotation.journal import write_beside
from modules.config import ConfigError

Snapshot = dict[str, tuple[bytes, int, int]]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three images: a has a caption of another program, b none, sub/c an empty one."""
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.png", "b.png", "sub/c.png"):
        Image.new("RGB", (6, 4), "red").save(folder / name)
    (folder / "a.txt").write_bytes("früher\r\nold\r\n".encode("latin-1"))
    os.chmod(folder / "a.txt", 0o640)
    os.utime(folder / "a.txt", ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
    (folder / "sub/c.txt").write_bytes(b" \n")
    return folder


def make(images: Path, mode: Mode = "replace", task: Task = "caption", ending: str = ".txt") -> ProposalSet:
    header = Header(task=task, folder=str(images), model="m", mode=mode, ending=ending, settings={})
    return ProposalSet.create(images.parent / "annotations", header)


def proposed(images: Path, mode: Mode = "replace", task: Task = "caption") -> ProposalSet:
    proposals = make(images, mode, task)
    for name in ("a.png", "b.png", "sub/c.png"):
        proposals.add(Proposal(image=name, text=f"red, new {name[-5]}"))
    return proposals


def snapshot(folder: Path) -> Snapshot:
    """Content, permissions and time of modification of every file."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    stats = [(each, each.stat()) for each in files]
    return {str(each): (each.read_bytes(), found.st_mode, found.st_mtime_ns) for each, found in stats}


def test_what_was_there_comes_back_to_the_bit(images: Path) -> None:
    before = snapshot(images)
    proposals = proposed(images)
    states: list[str] = [proposals.state]
    assert apply_proposals(proposals).written == 3
    assert (images / "a.txt").read_text() == "red, new a\n"
    assert (images / "a.txt").stat().st_mode & 0o777 == 0o640
    assert (images / "sub/c.txt").read_text() == "red, new c\n"
    states.append(proposals.state)
    assert states == ["proposed", "written"]
    again = apply_proposals(proposals)
    assert (again.written, again.unchanged) == (0, 3)
    done = undo_proposals(proposals)
    assert (done.undone, done.left) == (3, {})
    assert snapshot(images) == before
    assert proposals.state == "proposed"
    assert not (proposals.path / "before").exists()


def test_a_file_that_changed_since_is_named_and_stays(images: Path) -> None:
    proposals = proposed(images)
    apply_proposals(proposals)
    (images / "a.txt").write_text("by hand")
    (images / "sub/c.txt").unlink()
    named: list[str] = []
    done = undo_proposals(proposals, lambda file, reason: named.append(f"{file} {reason}"))
    assert (done.undone, sorted(done.left)) == (1, ["a.txt", "sub/c.txt"])
    assert sorted(named) == ["a.txt has changed since it was written", "sub/c.txt was removed since it was written"]
    assert (images / "a.txt").read_text() == "by hand"
    (images / "a.txt").write_text("red, new a\n")
    assert undo_proposals(proposals).undone == 1
    assert (images / "a.txt").read_bytes() == "früher\r\nold\r\n".encode("latin-1")


def test_only_missing_never_replaces_what_came_meanwhile(images: Path) -> None:
    proposals = proposed(images, "missing")
    (images / "b.txt").write_text("meanwhile")
    result = apply_proposals(proposals)
    assert result.written == 1  # c was empty
    assert result.faults["b.png"] == "is not written: b.txt exists meanwhile"
    assert (images / "b.txt").read_text() == "meanwhile"


@pytest.mark.parametrize(
    ("task", "expected"),
    [("tag", "Red, big, new a\nold, red, new a\n"), ("caption", "Red, big\nold\nred, new a\n")],
)
def test_append_once(images: Path, task: Task, expected: str) -> None:
    (images / "a.txt").write_text("Red, big\nold")
    proposals = proposed(images, "append", task)
    for _ in range(2):
        apply_proposals(proposals)
        assert (images / "a.txt").read_text() == expected
    assert (images / "b.txt").read_text() == "red, new b\n"
    undo_proposals(proposals)
    assert (images / "a.txt").read_text() == "Red, big\nold"
    (images / "a.txt").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in apply_proposals(proposals).faults["a.png"]


def test_a_proposal_that_is_edited_after_it_was_written(images: Path) -> None:
    proposals = proposed(images)
    apply_proposals(proposals)
    proposals.change("a.png", text="edited\nby hand")
    proposals.change("b.png", skip=True)
    result = apply_proposals(proposals)
    assert (result.written, result.unchanged) == (1, 1)
    assert (images / "a.txt").read_text() == "edited by hand\n"
    undo_proposals(proposals)
    assert (images / "a.txt").read_bytes() == "früher\r\nold\r\n".encode("latin-1")
    assert not (images / "b.txt").exists()


@pytest.mark.parametrize("after", [0, 1, 2])
def test_killed_while_writing(images: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was written is in the journal; the next start goes on, or undoes it."""
    before = snapshot(images)
    write, count = write_beside, 0

    def die(path: Path, data: bytes, **others: int) -> None:
        nonlocal count
        if count == after:
            path.with_name(".partial-2147483600-annotation").write_bytes(data[:3])  # of a process that is gone
            raise KeyboardInterrupt
        count += 1
        write(path, data, **others)

    def interrupted() -> None:
        nonlocal count
        count = 0
        with monkeypatch.context() as patch:
            patch.setattr(apply_module, "write_beside", die)
            with pytest.raises(KeyboardInterrupt):
                apply_proposals(proposals)

    proposals = proposed(images)
    interrupted()
    assert undo_proposals(proposals).undone == after
    assert snapshot(images) == before
    interrupted()
    result = apply_proposals(proposals)
    assert (result.written, result.unchanged) == (3 - after, after)
    assert undo_proposals(proposals).undone == 3
    assert snapshot(images) == before


def test_torn_lines_of_a_killed_program(images: Path) -> None:
    proposals = proposed(images)
    file = proposals.path / "proposals.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"image": "b.png", "te')
    assert len(proposals.read()) == 3
    with proposals.lock():
        proposals.add(Proposal(image="b.png", text="after"))
    assert proposals.read()["b.png"].text == "after"
    apply_proposals(proposals)
    with (proposals.path / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"file": "b.t')
    proposals.change("a.png", text="other")
    assert apply_proposals(proposals).written == 1
    assert undo_proposals(proposals).undone == 3


def test_the_same_command_goes_on_until_it_is_written(images: Path) -> None:
    first = proposed(images)
    assert make(images).path == first.path
    assert make(images, "append").path != first.path
    apply_proposals(first)
    assert make(images).path == first.path.with_name(f"{first.path.name}-2")


def test_masks_are_written_or_added(images: Path) -> None:
    half = Image.new("L", (6, 4), 0)
    half.paste(255, (0, 0, 3, 4))
    Image.new("L", (6, 4), 0).save(images / "b-masklabel.png")
    with Image.open(images / "b-masklabel.png") as mask:
        mask.putpixel((5, 3), 255)
        mask.save(images / "b-masklabel.png")
    proposals = make(images, "append", "mask", "-masklabel.png")
    for name, size in (("a", (6, 4)), ("b", (6, 4)), ("c", (5, 4))):
        (proposals.path / "masks" / f"{name}.png").write_bytes(png(half.resize(size)))
    for image, proposed_mask in (("a.png", "a.png"), ("b.png", "b.png"), ("sub/c.png", "c.png")):
        proposals.add(Proposal(image=image, mask=proposed_mask))
    result = apply_proposals(proposals)
    assert result.faults == {"sub/c.png": "is 6x4 now, and its proposed mask 5x4"}
    with Image.open(images / "a-masklabel.png") as mask, Image.open(images / "b-masklabel.png") as both:
        assert mask.tobytes() == half.tobytes()
        assert [both.getpixel(each) for each in ((0, 0), (4, 0), (5, 3))] == [255, 0, 255]


LINES: list[tuple[str, object]] = [
    ("image", "../outside.png"),
    ("image", "/etc/passwd.png"),
    ("image", "sub\\..\\..\\x.png"),
    ("image", "sub/../../x.png"),
    ("image", "script.py"),
    ("image", 3),
    ("text", "x" * 30_000),
    ("mask", "../a.png"),
    ("mask", ".hidden.png"),
    ("bytes", -1),
]


@pytest.mark.parametrize(("field", "value"), LINES)
def test_proposals_of_somebody_else_lead_nowhere(images: Path, field: str, value: object) -> None:
    proposals = proposed(images)
    with (proposals.path / "proposals.jsonl").open("a") as file:
        file.write(json.dumps({"image": "b.png", field: value}) + "\n")
    with pytest.raises(ConfigError, match=rf"line 4 is wrong in '{field}'"):
        apply_proposals(proposals)
    assert not (images / "b.txt").exists()


@pytest.mark.parametrize("ending", [".png", "/../x.txt", ".jpg", "x", ".txt .caption", ".jsonl", ".py", ".SH"])
def test_endings_that_are_no_captions(images: Path, ending: str) -> None:
    for task in ("caption", "mask"):
        proposals = proposed(images)
        header = json.loads((proposals.path / "set.json").read_text())
        (proposals.path / "set.json").write_text(json.dumps(header | {"ending": ending, "task": task}))
        with pytest.raises(ConfigError, match=r"set\.json is wrong"):
            apply_proposals(proposals)


@pytest.mark.parametrize("what", ["file", "folder", "journal"])
def test_links_are_not_followed(images: Path, tmp_path: Path, what: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    Image.new("RGB", (6, 4)).save(outside / "d.png")
    (outside / "d.txt").write_text("mine")
    proposals = proposed(images)
    if what == "file":
        (images / "b.txt").symlink_to(outside / "d.txt")
        assert "is a link" in apply_proposals(proposals).faults["b.png"]
    elif what == "folder":
        (images / "linked").symlink_to(outside)
        proposals.add(Proposal(image="linked/d.png", text="no"))
        assert "is a link leading elsewhere" in apply_proposals(proposals).faults["linked/d.png"]
    else:
        apply_proposals(proposals)
        entry = json.loads((proposals.path / "journal.jsonl").read_text().splitlines()[0])
        (proposals.path / "journal.jsonl").write_text(json.dumps(entry | {"file": "../outside/d.txt"}) + "\n")
        with pytest.raises(ConfigError, match="no relative path"):
            undo_proposals(proposals)
    assert (outside / "d.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("field", "value"), [("mode", 0o4755), ("mode", "x"), ("mtime_ns", 10**40), ("before", "../../x"), ("after", None)]
)
def test_journal_of_somebody_else(images: Path, field: str, value: object) -> None:
    """No setuid, and no time that the system cannot set."""
    proposals = proposed(images)
    apply_proposals(proposals)
    entry = json.loads((proposals.path / "journal.jsonl").read_text().splitlines()[0])
    (proposals.path / "journal.jsonl").write_text(json.dumps(entry | {field: value}) + "\n")
    with pytest.raises(ConfigError, match=rf"journal.jsonl is wrong in '{field}'"):
        undo_proposals(proposals)
    assert (images / "a.txt").read_text() == "red, new a\n"


def test_undo_waits_for_folders_that_are_away(images: Path) -> None:
    """Such as those of a disk that is not mounted now."""
    before = snapshot(images)
    proposals = proposed(images)
    proposals.add(Proposal(image="sub/d.png", text="d"))
    Image.new("RGB", (6, 4)).save(images / "sub/d.png")
    apply_proposals(proposals)
    away = images.parent / "away"
    os.rename(images, away)
    with pytest.raises(ConfigError, match="does not exist any more"):
        undo_proposals(proposals)
    os.rename(away, images)
    os.rename(images / "sub", away)
    done = undo_proposals(proposals)
    assert done.undone == 2
    assert done.left == dict.fromkeys(["sub/d.txt", "sub/c.txt"], "is in a folder that does not exist any more")
    os.rename(away, images / "sub")
    assert undo_proposals(proposals).undone == 2
    (images / "sub/d.png").unlink()
    assert snapshot(images) == before


def test_a_file_that_cannot_be_written_does_not_stop_the_others(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, code = write_beside, errno.EACCES

    def fail(path: Path, data: bytes, **others: int) -> None:
        if path.name == "b.txt":
            raise OSError(code, os.strerror(code), str(path.with_name(".partial-1")))
        write(path, data, **others)

    monkeypatch.setattr(apply_module, "write_beside", fail)
    proposals = proposed(images)
    result = apply_proposals(proposals)
    assert (result.written, result.faults) == (2, {"b.png": "is not written: Permission denied"})
    code = errno.ENOSPC  # none would be written
    with pytest.raises(OSError, match="No space left") as error:
        apply_proposals(proposals)
    assert error.value.filename == str(images)
    monkeypatch.undo()
    assert apply_proposals(proposals).written == 1
    assert undo_proposals(proposals).undone == 3


def test_before_that_was_damaged_is_not_put_back(images: Path) -> None:
    proposals = proposed(images)
    apply_proposals(proposals)
    kept = next(each for each in (proposals.path / "before").iterdir() if each.stat().st_size > 3)
    kept.write_bytes(b"damaged")
    done = undo_proposals(proposals)
    assert list(done.left.values()) == ["is damaged in the journal"]
    assert (images / "a.txt").read_text() == "red, new a\n"


def test_no_set(tmp_path: Path, images: Path) -> None:
    with pytest.raises(ConfigError, match="holds no proposals"):
        apply_proposals(ProposalSet(tmp_path))
    proposals = proposed(images)
    os.rename(images, tmp_path / "moved")
    with pytest.raises(ConfigError, match="does not exist any more"):
        apply_proposals(proposals)


def test_images_with_one_name_and_images_that_are_gone(images: Path) -> None:
    Image.new("RGB", (6, 4)).save(images / "b.jpg")
    proposals = proposed(images)
    proposals.add(Proposal(image="b.jpg", text="second"))
    proposals.add(Proposal(image="gone.png", text="none"))
    faults = apply_proposals(proposals).faults
    assert faults["b.jpg"] == "another image has the same file b.txt"
    assert "does not exist any more" in faults["gone.png"]
    assert (images / "b.txt").read_text() == "red, new b\n"

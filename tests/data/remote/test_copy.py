"""Copies of addresses: what is downloaded, what a second start does, and servers that cut off or mislead."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.config import DataError
from modules.data.remote import copy as copy_module
from modules.data.remote import remote_file, web
from modules.data.remote.copy import Copy, Unreachable
from modules.data.remote.remote_file import local_name
from modules.files import FileFault
from modules.files.addresses import VARIABLE, copy_of, is_address, parse_address
from tests.data.web_server import FolderServer, serving

SIZE = 3 << 20


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copies"))
    for module in (copy_module, remote_file):
        monkeypatch.setattr(module, "WAIT_S", 0.0)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / "copies"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "there" / "shards"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number:05d}.tar").write_bytes(random.Random(number).randbytes(SIZE))
    return folder


def updated(address: str) -> tuple[Copy, list[tuple[int, int]]]:
    copy, told = Copy(address), list[tuple[int, int]]()
    copy.compare()
    copy.update(lambda done, total: told.append((done, total)))
    return copy, told


def same(copy: Copy, folder: Path) -> bool:
    there = [file for file in folder.rglob("*") if file.is_file()]
    found = [file for file in copy.root.rglob("*") if file.is_file()]
    return same_bytes(copy, folder) and len(found) == len(copy.wanted) == len(there)


def same_bytes(copy: Copy, folder: Path) -> bool:
    return all((copy.root / name).read_bytes() == (folder / name).read_bytes() for name in copy.wanted)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_copy_is_made_once_and_follows_what_changes(shards: Path, ranges: bool) -> None:
    with serving(shards.parent, ranges=ranges) as server:
        address = f"{server.url}/shards/{{00000..00002}}.tar"
        copy, told = updated(address)
        assert same(copy, shards)
        assert copy.root.name == "shards"
        assert copy.is_complete
        assert told[-1] == (3 * SIZE, 3 * SIZE)
        assert not (copy.place / "partial").exists()
        server.requests.clear()
        updated(address)
        assert {method for method, *_ in server.requests} == {"HEAD"}
        (shards / "00001.tar").write_bytes(b"another")
        copy, told = updated(address)
        assert same(copy, shards)
        assert [path for method, path, _ in server.requests if method == "GET"] == ["/shards/00001.tar"]
        (copy.root / "00002.tar").write_bytes(b"touched here")
        assert same(updated(address)[0], shards)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_was_stopped_goes_on_where_it_ended(shards: Path, ranges: bool) -> None:
    with serving(shards.parent, ranges=ranges) as server:
        address, server.cut_after = f"{server.url}/shards/00000.tar", 2 << 20
        copy = Copy(address)
        copy.compare()
        if not ranges:  # each try begins anew, and gets no further
            with pytest.raises(DataError, match=r"cut off|changes while"):
                copy.update(lambda *_: None)
            server.cut_after = 0
        copy, _ = updated(address)
        assert (copy.root / "00000.tar").read_bytes() == (shards / "00000.tar").read_bytes()
        ranged = [found for method, _, found in server.requests if method == "GET" and found]
        assert ranged[0] == f"bytes={2 << 20}-"


def test_one_that_was_killed_goes_on_unless_the_file_is_another_one(shards: Path) -> None:
    with serving(shards.parent) as server:
        copy = Copy(f"{server.url}/shards/00000.tar")
        copy.compare()
        part = copy._partial(copy.missing[0])
        part.parent.mkdir(parents=True)
        part.write_bytes((shards / "00000.tar").read_bytes()[:1000])
        assert copy.missing_bytes == SIZE - 1000
        again, _ = updated(copy.text)
        assert server.requests[-1] == ("GET", "/shards/00000.tar", "bytes=1000-")
        assert (again.root / "00000.tar").read_bytes() == (shards / "00000.tar").read_bytes()
        copy.compare()
        part = copy._partial(copy.wanted["00000.tar"])
        part.parent.mkdir(parents=True)
        part.write_bytes(b"of the former")
        (shards / "00000.tar").write_bytes(b"new" * 1000)
        again, _ = updated(copy.text)
        assert (again.root / "00000.tar").read_bytes() == b"new" * 1000


def test_a_stop_ends_the_download_and_leaves_no_complete_copy(shards: Path) -> None:
    with serving(shards.parent) as server:
        copy = Copy(f"{server.url}/shards/{{00000..00002}}.tar")
        copy.compare()

        def stop(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            copy.update(stop)
        assert not copy.is_complete
        assert same(updated(copy.text)[0], shards)


@pytest.mark.parametrize("fault", ["refused", "stopped"])
def test_an_update_that_fails_leaves_the_complete_copy(shards: Path, fault: str) -> None:
    with serving(shards.parent) as server:
        copy, _ = updated(f"{server.url}/shards/{{00000..00001}}.tar")
        former = {file.name: file.read_bytes() for file in copy.root.iterdir()}
        for name in former:
            (shards / name).write_bytes(b"another")
        copy.compare()
        server.refusals = {"/shards/00001.tar": 403} if fault == "refused" else {}

        def progress(done: int, total: int) -> None:
            if fault == "stopped":
                raise KeyboardInterrupt

        with pytest.raises((DataError, KeyboardInterrupt)):
            copy.update(progress)
        assert copy.is_complete
        assert {file.name: file.read_bytes() for file in copy.root.iterdir()} == former


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Range": f"bytes 0-{SIZE - 1}/{SIZE}"},
        {"Content-Range": f"bytes {2 << 20}-{SIZE - 1}/{SIZE + 1}"},
        {"ETag": '"another"'},
    ],
)
def test_the_rest_of_another_file_is_not_added(shards: Path, headers: dict[str, str]) -> None:
    with serving(shards.parent) as server:
        copy = Copy(f"{server.url}/shards/00000.tar")
        copy.compare()
        part = copy._partial(copy.missing[0])
        part.parent.mkdir(parents=True)
        part.write_bytes(bytes(2 << 20))
        server.headers = headers
        if "ETag" in headers:
            with pytest.raises(DataError, match="changes while"):
                copy.update(lambda *_: None)
        else:
            copy.update(lambda *_: None)
            assert same_bytes(copy, shards)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Content-Encoding": "gzip"}, "the server compresses"),
        ({"Content-Length": "5"}, "changes while it is downloaded"),
    ],
)
def test_answers_that_are_not_the_file_are_refused(shards: Path, headers: dict[str, str], words: str) -> None:
    with serving(shards.parent) as server:
        copy = Copy(f"{server.url}/shards/00000.tar")
        copy.compare()
        server.headers = headers
        with pytest.raises(DataError, match=words):
            copy.update(lambda *_: None)
        assert not copy.is_complete


def test_a_size_of_many_digits_and_a_connection_that_drips(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileFault, match="does not tell the size"):
        web._of_headers({"Content-Length": "9" * 5000}, "a.tar", "http://host/a.tar")
    monkeypatch.setattr(web, "_SLOW_S", 0.0)
    monkeypatch.setattr(web, "_LEAST", 1 << 50)
    with serving(shards.parent) as server:
        copy = Copy(f"{server.url}/shards/00000.tar")
        copy.compare()
        server.cut_after, server.release = 1, threading.Event()
        try:
            with pytest.raises(DataError, match="the server sends less than"):
                copy.update(lambda *_: None)
        finally:
            server.release.set()


def test_questions_are_asked_again_and_what_refuses_them_is_no_lost_connection(shards: Path) -> None:
    path = "/shards/00000.tar"
    with serving(shards.parent) as server:
        copy = Copy(f"{server.url}{path}")
        server.refusals = {path: 503}
        with pytest.raises(Unreachable, match="HTTP 503"):
            copy.compare()
        assert len(server.requests) == 3
        server.refusals = {path: 403}
        with pytest.raises(DataError, match="HTTP 403") as refused:
            copy.compare()
        assert not isinstance(refused.value, Unreachable)

        def look(found: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            copy.compare(look)


def redirected(server: FolderServer, target: str) -> Copy:
    server.redirects = {"/shards/00000.tar": target}
    copy = Copy(f"{server.url}/shards/00000.tar")
    copy.compare()
    return copy


def test_redirects_lead_to_web_servers_alone(shards: Path) -> None:
    with serving(shards.parent) as server:
        (shards.parent / "moved.tar").write_bytes(b"moved")
        copy = redirected(server, f"{server.url}/moved.tar")
        copy.update(lambda *_: None)
        assert (copy.root / "00000.tar").read_bytes() == b"moved"
        for target in ("file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"):
            with pytest.raises(DataError, match="address that is refused"):
                redirected(server, target)
        with pytest.raises(DataError, match="in a circle"):  # in a circle
            redirected(server, f"{server.url}/shards/00000.tar")


def test_what_cannot_be_downloaded_is_one_sentence(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(shards.parent) as server:
        with pytest.raises(DataError, match=r"HTTP 404 for http://127\.0\.0\.1:\d+/shards/9\.tar"):
            updated(f"{server.url}/shards/9.tar")
        copy, _ = updated(f"{server.url}/shards/00001.tar")
        (copy.root / "mine.png").touch()
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        copy, _ = updated(copy.text)
        assert [file.name for file in copy.root.iterdir()] == ["00001.tar"], "nothing is downloaded: no disk is full"
        with pytest.raises(DataError, match=f"GB are free; {VARIABLE} names another folder"):
            updated(f"{server.url}/shards/00000.tar")
    with pytest.raises(DataError, match="does not answer"):
        Copy(f"{server.url}/shards/00000.tar").compare()


def test_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    folder = tmp_path / "there"
    for name in ("data/cats/a.jpg", "data/cats/a.txt", "data/dogs/b.jpg", "README.md", ".gitattributes"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    with serving(folder) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        copy, _ = updated("hf://datasets/owner/name/data/cats")
        assert sorted(copy.wanted) == ["a.jpg", "a.txt"]
        assert same(copy, folder / "data" / "cats")
        assert copy.root.name == "cats"
        asked = [path for _, path, _ in server.requests]  # huggingface_hub also asks for something of its own
        sent = {token for path, token in zip(asked, server.tokens, strict=True) if "datasets" in path}
        assert sent == {"Bearer hf_secret"}
        whole, _ = updated("hf://datasets/owner/name@v1")
        assert (len(whole.wanted), whole.unread, whole.root.name) == (3, 2, "name")
        other = Copy(whole.text, [".foo"])
        (folder / "data" / "odd\\name.txt").write_bytes(b"odd")
        (folder / "data" / "12:30.txt").write_bytes(b"a time")
        (folder / "data" / "a.foo").write_bytes(b"a caption")
        other.compare()
        assert other.only_add()
        other.update(lambda *_: None)
        found = {file.relative_to(other.root).as_posix() for file in other.root.rglob("*") if file.is_file()}
        assert found == {*whole.wanted, "data/a.foo"}
        whole, _ = updated(whole.text)
        assert whole.odd == ["data/odd\\name.txt"]
        assert {"data/12:30.txt", "data/a.foo"} < whole.wanted.keys()
        (folder / "data" / "odd\\name.txt").unlink()
        # a folder becomes a file, and another the reverse
        for each in (folder / "data" / "cats").iterdir():
            each.unlink()
        (folder / "data" / "cats").rmdir()
        (folder / "data" / "cats").write_bytes(b"a file")
        (folder / "data" / "a.foo").unlink()
        (folder / "data" / "a.foo").mkdir()
        (folder / "data" / "a.foo" / "b.txt").write_bytes(b"b")
        (whole.root / "mine.png").write_bytes(b"mine")
        (folder / ".gitattributes").unlink()
        (folder / "README.md").unlink()
        whole, _ = updated(whole.text)
        assert same(whole, folder)
        (folder / "data" / "cats").write_bytes(b"a vile")
        whole.compare()
        (folder / "data" / "cats").write_bytes(b"a file")  # of the same size, under the same commit
        with pytest.raises(DataError, match="comes damaged"):
            whole.update(lambda *_: None)
        with serving(folder) as cdn:
            other_url = cdn.url.replace("127.0.0.1", "localhost")
            path = "/datasets/owner/name/resolve/" + "c" * 40 + "/data/dogs/b.jpg"
            server.redirects = {path: other_url + path}
            updated("hf://datasets/owner/name/data/dogs")
            assert cdn.tokens == [""]
    assert "hf_secret" not in "".join(file.read_text() for file in copy.place.parent.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "a\\b", "a\0b", "", ".", "a\x1b[2J", "a" * 256, "\ud800"]
)
def test_names_from_outside_stay_in_the_folder(name: str) -> None:
    with pytest.raises(FileFault, match="cannot be one here"):
        local_name(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file:///etc", "is not read"),
        ("ftp://host/a.tar", "is not read"),
        ("pipe:cat x", "is not read"),
        ("https://me:secret@host/a.tar", "has a password"),
        ("https://host/a.tar?X-Amz-Signature=1", "has a query"),
        ("https://host/folder/", "names no archive"),
        ("https://host/{0..99999999}.tar", "names more than"),
        ("https://host/%7B0..99999999%7D.tar", "names more than"),
        ("hf://datasets/a/b/{0..999}/{0..9999}.tar", "names more than"),
        ("https://host/{0..999999999999}{1..0}.tar", "range {1..0}, which is empty"),
        ("s3://b/" + "{1..1}" * 1100, "has 1,100 ranges"),
        ("hf://datasets/a/b?token=hf_1", "has a query"),
        ("hf://datasets/a/b#x", "has a query"),
        ("https://host/%2e%2e/a.tar", "has .. or"),
        ("https://host/../a.tar", "has .. or"),
        ("hf://owner/name", "is no data set"),
        ("s3://", "is no address"),
    ],
)
def test_addresses_that_are_refused(text: str, words: str) -> None:
    assert is_address(text)
    with pytest.raises(ValueError, match=words):
        parse_address(text)


def test_addresses_and_names_of_their_copies(tmp_path: Path) -> None:
    for path in ("photos/cats", "C:\\cats", "/a:/b", "~/x", "a.tar"):
        assert not is_address(path)
    assert parse_address("https://h/{08..11}/{0..1}.tar").paths[:3] == ("08/0.tar", "08/1.tar", "09/0.tar")
    names = {
        each: Path(copy_of(each)).name
        for each in ("s3://b/x/cats/", "s3://b", "s3://b/x/00.tar", "https://h/{0..1}.zip")
    }
    assert list(names.values()) == ["cats", "b", "x", "h"]
    assert copy_of("s3://b/x/") == copy_of("s3://b/x")

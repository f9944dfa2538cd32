"""Copies of addresses: what is downloaded, what a second start does, and servers that cut off or mislead."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.config import DataError
from modules.data.remote import copy as copy_module
from modules.data.remote.copy import Copy
from modules.data.remote.remote_file import local_name
from modules.files import FileFault
from modules.files.addresses import VARIABLE, copy_of, is_address, parse_address
from tests.data.web_server import FolderServer, serving

SIZE = 3 << 20


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setattr(copy_module, "_WAIT_S", 0.0)
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
    there = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    here = {name: (copy.root / name).read_bytes() for name in copy.wanted}
    found = [file for file in copy.root.rglob("*") if file.is_file()]
    return here == there and len(found) == len(here)


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
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
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
        (tmp_path / "elsewhere").mkdir()
        with serving(folder) as other:
            other_url = other.url.replace("127.0.0.1", "localhost")
            path = "/datasets/owner/name/resolve/" + "c" * 40 + "/data/dogs/b.jpg"
            server.redirects = {path: other_url + path}
            updated("hf://datasets/owner/name/data/dogs")
            assert other.tokens == [""]
    assert "hf_secret" not in "".join(file.read_text() for file in copy.place.parent.rglob("*") if file.is_file())


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "C:x", "a\\b", "a\0b", "", ".", "a\x1b[2J"])
def test_names_from_outside_stay_in_the_folder(name: str) -> None:
    with pytest.raises(FileFault, match="leads elsewhere"):
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

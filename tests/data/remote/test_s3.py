"""Copies of S3 buckets, by s3fs from a server in this process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.config import DataError
from modules.data.remote import copy as copy_module
from modules.data.remote import s3
from modules.data.remote.copy import Unreachable
from modules.files.addresses import VARIABLE
from tests.data.remote.test_copy import same, updated
from tests.data.s3_server import BucketServer, serving_buckets

s3fs = pytest.importorskip("s3fs", reason="the extra remote-data is not installed")

FILES = ("pets/cats/1.jpg", "pets/cats/1.txt", "pets/cats/more/2 ä&b.jpg", "pets/cats2/3.jpg", "pets/README.pdf")
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """A bucket `pets`; no keys are found on this machine."""
    for name in FILES:
        file = tmp_path / "buckets" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(random.Random(name).randbytes(1000))
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", *KEYS):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setattr(copy_module, "WAIT_S", 0.0)
    with serving_buckets(tmp_path / "buckets") as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        s3fs.S3FileSystem.clear_instance_cache()  # which know the server of the last test
        yield running


def got(server: BucketServer) -> list[str]:
    """The objects that were downloaded since the last call."""
    found = [path for method, path, _ in server.requests if method == "GET" and not path.endswith("/")]
    server.requests.clear()
    return found


def test_a_prefix_is_copied_once_and_follows_what_changes(server: BucketServer) -> None:
    cats = server.folder / "pets" / "cats"
    copy, told = updated("s3://pets/cats")
    assert same(copy, cats), "cats2 begins alike and is another folder"
    assert told[-1] == (3000, 3000)
    assert copy.root.name == "cats"
    assert sorted(got(server)) == sorted(FILES[:3])
    updated("s3://pets/cats/")
    assert len(server.requests) == 3, "of 5 objects, 2 in a page"
    assert got(server) == []
    (cats / "1.txt").write_bytes(b"another")
    (cats / "1.jpg").unlink()
    copy, _ = updated("s3://pets/cats")
    assert same(copy, cats)
    assert got(server) == ["pets/cats/1.txt"]
    whole, _ = updated("s3://pets")
    assert (sorted(whole.wanted), whole.unread) == (["cats/1.txt", "cats/more/2 ä&b.jpg", "cats2/3.jpg"], 1)
    assert not any(server.signed), "without keys, as anybody"


def test_keys_of_the_environment_sign_and_are_kept_nowhere(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    copy, _ = updated("s3://pets/cats")
    assert all(server.signed)
    kept = [file.read_bytes() for file in (tmp_path / "copies").rglob("*") if file.is_file()]
    assert not any(b"secret" in each for each in kept)
    assert same(copy, server.folder / "pets" / "cats")


def test_shards_by_number_go_on_where_a_download_was_cut_off(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = server.folder / "shards"
    shards.mkdir()
    for number in range(3):
        (shards / f"{number:05}.tar").write_bytes(random.Random(number).randbytes(1000))
    monkeypatch.setattr(s3, "_PIECE", 400)
    server.cut_after = 300  # of the first piece
    copy, _ = updated("s3://shards/{00000..00001}.tar")
    assert sorted(copy.wanted) == ["00000.tar", "00001.tar"]
    assert all((copy.root / name).read_bytes() == (shards / name).read_bytes() for name in copy.wanted)
    ranges = {asked for method, path, asked in server.requests if path.startswith("shards/0")}
    assert {"bytes=0-399", "bytes=400-799", "bytes=800-999"} <= ranges
    part = copy._partial(copy.wanted["00001.tar"])
    (copy.root / "00001.tar").unlink()
    part.parent.mkdir(parents=True)
    part.write_bytes((shards / "00001.tar").read_bytes()[:500])
    server.requests.clear()
    again, _ = updated(copy.text)
    assert [asked for *_, asked in server.requests if asked] == ["bytes=500-899", "bytes=900-999"]
    assert (again.root / "00001.tar").read_bytes() == (shards / "00001.tar").read_bytes()


def test_an_object_that_changes_meanwhile_is_not_mixed(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_PIECE", 400)
    server.changes = {"3.jpg": b"x" * 1000}
    with pytest.raises(DataError, match="changes while it is downloaded"):
        updated("s3://pets/cats2")
    assert same(updated("s3://pets/cats2")[0], server.folder / "pets/cats2")


def test_what_a_bucket_refuses_is_one_sentence(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"'s3://none/x' does not exist \(bucket 'none'\), or is not for you; set AWS_"):
        updated("s3://none/x")
    with pytest.raises(DataError, match="there is nothing at 's3://pets/dogs' that a run reads"):
        updated("s3://pets/dogs")
    server.refusals = {"pets/": 403}
    with pytest.raises(DataError, match=r"is not for you: the server refuses it; set AWS_") as refused:
        updated("s3://pets/cats")
    assert not isinstance(refused.value, Unreachable)
    server.refusals = {"pets/cats2/3.jpg": 403}
    with pytest.raises(DataError, match="is not for you"):
        updated("s3://pets/cats2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(Unreachable, match="the server does not answer"):
        updated("s3://pets/cats")

"""Runs from addresses: those of folders, to the bit; one rank of a machine downloads, and others wait for it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from modules.config import DataError
from modules.data.remote import remote_file
from modules.distributed import single_process
from modules.files.addresses import VARIABLE, copy_of, copy_place
from modules.monitoring import SilentReport
from modules.training.data.copies import copies, update_copies
from scripts import train
from tests.data.shards import two_shards
from tests.data.web_server import serving
from tests.runs import (
    ROOT,
    Job,
    group_exit_codes,
    same_state,
    tiny_config,
    train_alone,
    train_command,
    train_group,
)

HOLDS = """
import sys
from pathlib import Path
from modules.run.folder.run_lock import file_lock
with file_lock(Path(sys.argv[1]) / "in-use-other-1-rank-0.lock") as is_held:
    print(is_held, flush=True)
    sys.stdin.read()
"""


class Warnings(SilentReport):
    def __init__(self) -> None:
        self.said: list[str] = []

    def warning(self, text: str) -> None:
        self.said.append(text)


def test_a_copy_that_another_run_uses_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setattr(remote_file, "WAIT_S", 0.0)
    file = tmp_path / "there" / "a.tar"
    file.parent.mkdir()
    file.write_bytes(b"first")
    with serving(file.parent) as server, single_process([]) as ranks:
        address = f"{server.url}/a.tar"
        config = tiny_config(file.parent, tmp_path, concepts=[{"path": address}])
        place, copied = copy_place(address), Path(copy_of(address)) / "a.tar"

        def update() -> str:
            report = Warnings()
            with ExitStack() as held:
                update_copies(config, ranks, report, lambda: None, held)
                assert len([*place.glob("in-use-*")]) >= 1
            return " ".join(report.said)

        assert update() == ""
        assert [*place.glob("in-use-*")] == []
        file.write_bytes(b"second")
        other = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(place)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"True\n"
            assert "another run trains from the copy" in update()
            assert copied.read_bytes() == b"first"
            other.kill()
        server.headers = {"Content-Length": "3"}
        assert "complete copy of an earlier run is used" in update()
        assert copied.read_bytes() == b"first"
        server.headers = {}
        assert update() == ""
        assert copied.read_bytes() == b"second"
        server.refusals = {"/a.tar": 503}
        assert "complete copy of an earlier run is used" in update()
        server.refusals = {"/a.tar": 403}
        with pytest.raises(DataError, match="HTTP 403"):
            update()


def test_one_copy_of_addresses_that_are_spelled_differently(tmp_path: Path) -> None:
    concepts = [{"path": "s3://b/cats"}, {"path": "s3://b/cats/", "caption_extension": ".foo"}]
    (copy,) = copies(tiny_config(tmp_path, tmp_path, concepts=concepts))
    assert copy._is_read("a.foo")
    assert not copy._is_read("a.bar")


@pytest.mark.slow
def test_a_run_from_an_address_is_that_from_folders(
    masked_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user_cache"))
    packed, _ = two_shards(masked_images, tmp_path)
    (packed / "00001.zip").unlink()
    settings = {"masked_training": True, "precision": "fp64"}
    code, folder = train_alone(tiny_config(packed, tmp_path / "a", **settings))
    assert code == 0, folder.failure(0)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copies"))
    with serving(packed) as server:
        config = tiny_config(packed, tmp_path / "b", **settings, concepts=[{"path": f"{server.url}/00000.tar"}])
        both = train_group(2, {"both": Job(config)})["both"]
        assert group_exit_codes(both, 2) == [0, 0], both.failure(0)
        assert [method for method, *_ in server.requests] == ["HEAD", "GET"]
    assert both.losses == pytest.approx(folder.losses, rel=1e-12)
    # without the server, from the complete copy, in another place of the disk
    (tmp_path / "copies").rename(tmp_path / "moved")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "moved"))
    code, offline = train_alone(config.model_copy(update={"run_name": "offline", "cache_dir": str(tmp_path / "c")}))
    assert code == 0, offline.failure(0)
    assert same_state(offline.state, folder.state)


@pytest.mark.slow
def test_what_a_dry_run_and_a_run_say(
    masked_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packed, _ = two_shards(masked_images, tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user_cache"))
    with serving(packed) as server:
        config = tiny_config(packed, tmp_path, concepts=[{"path": f"{server.url}/00000.tar"}])
        assert train.main([*train_command(config, tmp_path / "config.yaml")[2:], "--dry_run"]) == 0
        said = capsys.readouterr().out
        assert "1 file," in said
        assert "downloaded to" in said
        assert not (tmp_path / "copies").exists()
    code, run = train_alone(config)
    assert code == 4
    assert "00000.tar" in run.failure(0)
    assert "does not answer" in run.failure(0)

"""Runs from addresses: those of folders, to the bit; one rank of a machine downloads, and others wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.files.addresses import VARIABLE
from tests.data.shards import two_shards
from tests.data.web_server import serving
from tests.runs import (
    Job,
    assert_error_message,
    group_exit_codes,
    run_command,
    same_state,
    tiny_config,
    train_alone,
    train_command,
    train_group,
)


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
def test_what_a_dry_run_and_a_run_say(masked_images: Path, tmp_path: Path) -> None:
    packed, _ = two_shards(masked_images, tmp_path)
    places = {VARIABLE: str(tmp_path / "copies"), "XDG_CACHE_HOME": str(tmp_path / "user_cache")}
    with serving(packed) as server:
        concepts = [{"path": f"{server.url}/00000.tar"}]
        command = train_command(tiny_config(packed, tmp_path, concepts=concepts), tmp_path / "config.yaml", "--dry_run")
        done = run_command(command, **places)
        assert done.returncode == 0, done.stderr
        assert "1 file," in done.stdout
        assert "downloaded to" in done.stdout
        assert not (tmp_path / "copies").exists()
    done = run_command(command[:-1], **places)
    assert_error_message(done, 4, "00000.tar", "does not answer")

"""Which files of a config another machine gets, and how the config there names them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from modules.config import ConfigError, DataError, TrainConfig
from modules.files import Record, is_shard
from modules.files.addresses import VARIABLE, copy_of
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host, find_hosts
from modules.run.hosts.ssh_command import HostError
from modules.run.remote.link import Link, LinkLost, home_of, with_reconnects
from modules.run.remote.sending import (
    code_uploads,
    config_there,
    data_uploads,
    only_there,
    own_settings,
    place_there,
    sent_folders,
)
from scripts import remote
from tests.conftest import draw_images
from tests.runs import ROOT

HOME = "/home/me/.tandem"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the paths of a config begin."""
    monkeypatch.chdir(tmp_path)
    for name in ("images", "before", "off", "base"):
        (tmp_path / name).mkdir()
    for name in ("images", "before", "off"):
        draw_images(tmp_path / name, 1)
    (tmp_path / "images" / "masks").mkdir()
    draw_images(tmp_path / "images" / "masks", 1)
    for name in ("images/notes.docx", "images/.hidden", "base/config.json", "lora.safetensors"):
        (tmp_path / name).write_bytes(b"a")
    return tmp_path


def config_of(**settings: object) -> TrainConfig:
    """A run with a path in every kind of setting that has one."""
    concepts = [{"path": "images", "references": "before"}, {"path": "off", "enabled": False}]
    data = {"base_model": "base", "method": "lora", "lora_from": "lora.safetensors", "concepts": concepts}
    return TrainConfig.model_validate({"family": "flux_kontext", **data, **settings})


def test_what_is_sent_and_how_it_is_named_there(place: Path) -> None:
    config = config_of(samples=[{"prompt": "a", "reference": "before/00.png"}])
    host = Host.make("beta", "me@beta", "~/.tandem/code", settings=["loader_workers=7"])
    uploads = data_uploads(config, own_settings(host))
    names = {path: {each.file.name for each in files} for path, files in uploads.items()}
    assert names["images"] == {"00.png", "00.txt"}
    assert [each.place for each in uploads["base"]] == [place_there(str(place / "base" / "config.json"))]
    assert names.keys() == {"base", "lora.safetensors", "images", "before", "before/00.png"}
    there = json.loads(config_there(config, host, HOME, "x"))
    data = f"{HOME}/data{place.as_posix()}"
    assert there["base_model"] == f"{data}/base"
    assert there["concepts"][0]["path"] == f"{data}/images"
    assert there["concepts"][0]["references"] == f"{data}/before"
    assert there["concepts"][1]["path"] == "off"
    assert (there["runs_dir"], there["cache_dir"], there["run_name"]) == (f"{HOME}/runs", f"{HOME}/cache", "x")
    assert there["loader_workers"] == 7


def test_what_the_machine_has_itself_is_not_sent(place: Path) -> None:
    config = config_of(base_model="black-forest-labs/FLUX.1-dev", lora_from=None)
    host = Host.make("beta", "me@beta", "~/.tandem/code", settings=["concepts.0.path=/cats", "concepts.0.references="])
    assert data_uploads(config, own_settings(host)) == {}
    there = json.loads(config_there(config, host, HOME, "x"))
    assert there["base_model"] == "black-forest-labs/FLUX.1-dev"
    assert there["concepts"][0]["path"] == "/cats"
    assert place.is_dir()


def test_an_address_is_copied_by_the_machine_itself(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(place))
    Path(copy_of("s3://b/cats")).mkdir(parents=True)
    draw_images(Path(copy_of("s3://b/cats")), 1)
    config = config_of(base_model=None, lora_from=None, concepts=[{"path": "s3://b/cats", "references": "before"}])
    assert set(data_uploads(config, ())) == {"before"}
    there = json.loads(config_there(config, Host.make("beta", "me@beta", "~/.tandem/code"), HOME, "x"))
    assert there["concepts"][0]["path"] == "s3://b/cats"


@pytest.mark.parametrize(
    ("concept", "texts"),
    [
        ({}, {"00.txt", "00.json", "00.cls", "captions/00.txt", "metadata.jsonl"}),
        ({"caption_source": "txt"}, {"00.txt", "captions/00.txt"}),
        ({"caption_source": "label"}, {"00.txt", "00.json", "00.cls", "captions/00.txt", "metadata.jsonl"}),
        ({"caption_source": "none"}, set()),
        ({"include_subfolders": False}, {"00.txt", "00.json", "00.cls", "metadata.jsonl"}),
    ],
)
def test_only_what_a_run_reads_is_sent(concept: dict[str, object], texts: set[str], place: Path) -> None:
    (place / "images" / "captions").mkdir()
    unread = ("diary.txt", "passwords.json", "bank.csv", "captions/letter.txt")
    for name in (*unread, "00.json", "00.cls", "captions/00.txt", "metadata.jsonl"):
        (place / "images" / name).write_text("{}")
    config = config_of(concepts=[{"path": "images", **concept}], base_model=None, lora_from=None)
    names = {each.file.relative_to("images").as_posix() for each in data_uploads(config, ())["images"]}
    assert {name for name in names if not name.startswith("masks/")} == {"00.png"} | texts
    assert ("masks/00.png" in names) == concept.get("include_subfolders", True)


def test_of_shards_those_are_sent_that_the_run_reads(place: Path) -> None:
    """Not what images lie beside, nor what was unpacked, nor what another program has kept there."""
    (place / "images" / "packed" / "01").mkdir(parents=True)
    read = ("packed/00.tar", "packed/02.arrow", "packed/03.parquet")
    unread = ("beside.tar", "table.parquet", "metadata.parquet", "packed/01.tar", "packed/cache-1.arrow")
    for name in (*read, *unread):
        (place / "images" / name).write_bytes(b"a")
    (place / "before" / "more.tar").write_bytes(b"a")
    concept = {"path": "images", "references": "before", "caption_source": "txt"}
    uploads = data_uploads(config_of(concepts=[concept], base_model=None, lora_from=None), ())
    shards = {each.file.relative_to("images").as_posix() for each in uploads["images"] if is_shard(each.file.name)}
    assert shards == {*read}
    assert {each.file.name for each in uploads["before"]} == {"00.png"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")
def test_each_file_has_a_place_of_its_own(place: Path) -> None:
    (place / "images" / "0:0.png").write_bytes((place / "images" / "00.png").read_bytes() + b"another")
    uploads = data_uploads(config_of(concepts=[{"path": "images"}]), ())["images"]
    assert len({each.place for each in uploads}) == len(uploads)
    assert sent_folders(["images", "lora.safetensors"]) == [f"data{place.as_posix()}/images"]


def test_paths_that_only_the_other_machine_may_have(place: Path) -> None:
    config = config_of(base_model="/models/none", lora_from="none.safetensors", training_adapter="lora.safetensors")
    assert sorted(only_there(config, ())) == [("base_model", "/models/none"), ("lora_from", "none.safetensors")]
    assert only_there(config, ["base_model"]) == [("lora_from", "none.safetensors")]
    assert only_there(config_of(base_model="owner/model"), ()) == []
    assert place.is_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for ssh is a shell script")
def test_what_does_not_pass_ends_the_reconnects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    again = "echo 'Host key verification failed.' >&2; exit 255"
    ssh.write_text(f'#!/bin/sh\nmkdir "{tmp_path}/no" || {{ {again}; }}\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    host = Host.make("beta", "me@beta", f"{tmp_path}/home/code", python=sys.executable)

    def cut(link: Link) -> None:
        link.ask(Record, "make")
        raise LinkLost("cut")

    with pytest.raises(HostError, match="shows a host key that is unknown"):
        with_reconnects(host, lambda text: None, cut)


def test_added_again_a_machine_keeps_what_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text("")
    host = Host.make("beta", "me@beta", "/disk/code", port=1, python="/python", settings=["cache_dir=/c"])
    add_host(host)
    assert remote.main(["add", "beta", "me@gamma", "--port", "2", "--key", "key"]) == 0
    new = host.model_copy(update={"target": "me@gamma", "port": 2, "key": str(tmp_path / "key")})
    assert find_hosts(["beta"]) == [new]
    assert "Kept as before: folder /disk, python /python, settings cache_dir=/c" in capsys.readouterr().out


@pytest.mark.parametrize("quoted", [False, True])
def test_a_line_for_ssh_is_an_address(
    quoted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a page shows it that rents machines out, typed with or without quotation marks."""
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "key").write_text("")
    line = ["ssh", "-p", "40022", "root@203.0.113.7", "-L", "8080:localhost:8080", "-i", str(tmp_path / "key")]
    words = [shlex.join(line)] if quoted else line
    assert remote.main(["add", "beta", *words, "--folder", "/disk/tandem"]) == 0
    key = str(tmp_path / "key")
    assert find_hosts(["beta"]) == [Host.make("beta", "root@203.0.113.7", "/disk/tandem/code", port=40022, key=key)]
    assert remote.main(["add", "beta", "ssh", "-P", "40022", "root@203.0.113.7"]) == 2
    assert "-P 40022 has no field here" in capsys.readouterr().err


def test_missing_images_are_said_before_anything_is_sent(place: Path) -> None:
    with pytest.raises(DataError, match="there is no folder 'none'"):
        data_uploads(config_of(concepts=[{"path": "none"}]), ())
    assert place.is_dir()


def test_the_code_is_whole_and_nothing_else() -> None:
    places = {each.place for each in code_uploads()}
    assert {
        "code/scripts/train.py",
        "code/scripts/setup.sh",
        "code/requirements.lock",
        "code/presets/demo.yaml",
    } <= places
    assert not [place for place in places if "__pycache__" in place or "/tests/" in place or "/mine/" in place]
    assert (ROOT / "tests").is_dir()


def test_a_machine_that_somebody_set_up_by_hand_is_left_alone() -> None:
    for folder in ("~/tandem", "~/code", "/code", "~"):
        with pytest.raises(ConfigError, match="set up there by hand"):
            home_of(Host.make("beta", "me@beta", folder))
    assert home_of(Host.make("beta", "me@beta", "~/.tandem/code")) == "~/.tandem"

"""Fetching models from a hub that speaks the real protocol: what is downloaded, how often, and every way to fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import huggingface_hub.constants
import psutil
import pytest

from modules import ROOT
from modules.config import ConfigError, TrainingError
from modules.diffusion.hub.files import is_complete, required_files
from modules.diffusion.hub.model import HubModel
from tests.hub_server import TOKEN, HubServer, hub_server

pytestmark = pytest.mark.slow

GUARD_S = 180
NAME = "owner/model"
UNET = "unet/diffusion_pytorch_model.safetensors"
PARTS = ("unet", "text_encoder", "tokenizer", "scheduler")
NEEDED = {
    "model_index.json",
    "unet/config.json",
    UNET,
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "tokenizer/merges.txt",
    "tokenizer/tokenizer_config.json",
    "scheduler/scheduler_config.json",
}
USELESS = (
    "README.md",
    ".gitattributes",
    "whole.safetensors",
    "unet/diffusion_pytorch_model.bin",
    "unet/diffusion_pytorch_model.fp16.safetensors",
    "unet/diffusion_pytorch_model.non_ema.safetensors",
    "unet/diffusion_pytorch_model.safetensors.index.json",
    "unet/model.onnx",
    "text_encoder/pytorch_model.bin",
    "text_encoder/flax_model.msgpack",
    "text_encoder/openvino_model.xml",
    "safety_checker/model.safetensors",
)


TIMEOUTS = ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT")


def write(folder: Path, *names: str) -> Path:
    """Files that look like those of a pipeline; nothing here is loaded."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        reported = {"_class_name": "SomePipeline"} if name == "model_index.json" else {"name": name}
        file.write_text(json.dumps(reported) * (1 if name.endswith(".json") else 40))
    return folder


def model(name: str = NAME, revision: str = "") -> HubModel:
    return HubModel(name, revision, PARTS, ("SomePipeline",))


def silent(done: int, total: int) -> None:
    """Nobody listens."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub, and an empty cache of this computer, where nobody is logged in."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        for name in TIMEOUTS:
            monkeypatch.setenv(name, "60")  # never reached, also by a busy machine
        server.add(NAME, write(tmp_path / "model", *NEEDED))
        yield server


def give_up_after_2_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TIMEOUTS:
        monkeypatch.setenv(name, "2")


def unfinished(hub_home: Path) -> list[Path]:
    return list(hub_home.rglob("*.incomplete"))


def test_only_required_files_are_downloaded_and_only_once(hub: HubServer, tmp_path: Path) -> None:
    write(tmp_path / "model", *USELESS)
    reported: list[tuple[int, int]] = []
    assert model().cached_folder() is None
    assert model().download(lambda done, total: reported.append((done, total))) == ""
    assert sorted(hub.downloaded(NAME)) == sorted(NEEDED)
    folder = model().cached_folder()
    assert folder is not None
    assert {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()} == NEEDED
    index = (folder / "model_index.json").stat().st_size
    size = sum((folder / name).stat().st_size for name in NEEDED) - index  # which is read before anything is counted
    assert reported[-1] == (size, size)
    before = hub.calls(NAME)
    assert model().ensure_cached() == folder
    assert hub.calls(NAME) == before, "what is at hand is not asked for"
    assert model().download(silent) == ""
    assert sorted(hub.downloaded(NAME)) == sorted(NEEDED), "what has not changed is not downloaded again"
    (tmp_path / "model" / UNET).write_text("new weights" * 40)
    assert model().download(silent) == ""
    assert hub.downloaded(NAME).count(UNET) == 2
    assert len(hub.downloaded(NAME)) == len(NEEDED) + 1
    assert model().cached_folder() != folder


def test_branches_tags_and_commits(hub: HubServer, tmp_path: Path) -> None:
    repository = hub.repositories[NAME]
    other = write(tmp_path / "other", *NEEDED)
    (other / UNET).write_text("others" * 40)
    repository.revisions["v2"] = other
    commit = repository.commit("v2")
    for revision in ("v2", commit):
        assert model(revision=revision).download(silent) == ""
        folder = model(revision=revision).cached_folder()
        assert folder is not None
        assert folder.name == commit
        assert (folder / UNET).read_text().startswith("others")
    assert model().cached_folder() is None, "the main branch is another one"
    with pytest.raises(ConfigError, match=r"'owner/model' has no branch, tag or commit 'v3'.*/tree/main lists"):
        model(revision="v3").download(silent)


def only_pickles(folder: Path) -> None:
    (folder / UNET).rename(folder / "unet" / "diffusion_pytorch_model.bin")


def another_pipeline(folder: Path) -> None:
    (folder / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')


def one_file(folder: Path) -> None:
    shutil.rmtree(folder)
    write(folder, "whole.safetensors")


@pytest.mark.parametrize(
    ("behaviour", "token", "sentence"),
    [
        ({"gated": True}, "", r"requires accepting its licence, and you are not logged in.*Accept it at http.*"),
        ({"gated": True}, TOKEN, "accepting its licence, and your account has not accepted it.*hf auth login"),
        ({"private": True}, "", r"no such model on the hub visible without logging in\. Check the spelling.*HF_TOKEN"),
        ({}, "hf_wrong", "the hub does not accept your token.*Invalid credentials.*correct or unset HF_TOKEN"),
        ({"lost": UNET}, "", f"the hub lists {UNET} of 'owner/model', but does not have it"),
        ({"silent": True}, "", "could not be downloaded from the hub http.*: it does not answer. Check the connection"),
        ({"damage": shutil.rmtree}, "", "on the hub is empty"),
        (
            {"damage": one_file},
            "",
            r"not a diffusers pipeline.*It contains whole.safetensors.*`hf download owner/model whole",
        ),
        ({"damage": only_pickles}, "", r"unet only as a pickled file \(unet/diffusion_pytorch_model.bin\)"),
        (
            {"damage": another_pipeline},
            "",
            r"'owner/model on the hub' contains a FluxPipeline; this family trains Some",
        ),
        ({"damage": lambda folder: shutil.rmtree(folder / "tokenizer")}, "", "has no tokenizer"),
    ],
)
def test_every_download_error_is_a_sentence(
    hub: HubServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    behaviour: dict[str, object],
    token: str,
    sentence: str,
) -> None:
    damage = behaviour.pop("damage", None)
    if callable(damage):
        damage(tmp_path / "model")
        (tmp_path / "model").mkdir(exist_ok=True)
    for name, value in behaviour.items():
        setattr(hub.repositories[NAME], name, value)
    if "silent" in behaviour:
        give_up_after_2_s(monkeypatch)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ConfigError, match=f"^base_model: .*{sentence}"):
        model().download(silent)
    assert UNET not in hub.downloaded(NAME) or "lost" in behaviour, "nothing large was fetched in vain"
    assert unfinished(tmp_path) == []


def test_private_and_unknown_models_with_a_valid_token(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[NAME].private = True
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert model().download(silent) == ""
    with pytest.raises(
        ConfigError, match=r"no folder 'owner/other', and no such model on the hub visible to your account"
    ):
        model("owner/other").download(silent)


def test_earlier_download_is_used_if_the_hub_is_unreachable(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model().download(silent) == ""
    hub.repositories[NAME].silent = True
    give_up_after_2_s(monkeypatch)
    assert "that was downloaded earlier; the hub could not be asked" in model().download(silent)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    assert "(nothing answers there)" in model().download(silent)
    said = "no folder here, and could not be downloaded from the hub http://127.0.0.1:9: nothing answers there."
    with pytest.raises(ConfigError, match=said):
        model("owner/other").download(silent)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert model().download(silent) == ""
    with pytest.raises(ConfigError, match=r"'owner/other'.*HF_HUB_OFFLINE forbids.*Unset HF_HUB_OFFLINE once"):
        model("owner/other").download(silent)


def test_broken_connection_is_resumed(hub: HubServer) -> None:
    hub.repositories[NAME].breaks = {UNET: 2}
    reported: list[tuple[int, int]] = []
    assert model().download(lambda done, total: reported.append((done, total))) == ""
    assert hub.downloaded(NAME).count(UNET) == 3
    assert reported[-1][0] == reported[-1][1], "no byte is counted twice"
    folder = model().cached_folder()
    assert folder is not None
    assert (folder / UNET).read_bytes() == hub.repositories[NAME].files("main")[UNET]


class Stopped(Exception):
    """The run is to end."""


def test_cancelled_download_keeps_completed_files(hub: HubServer, tmp_path: Path) -> None:
    held = threading.Event()
    hub.repositories[NAME].hold = {UNET: held}

    def stop(done: int, total: int) -> None:
        if hub.halfway.is_set() and len(hub.downloaded(NAME)) == len(NEEDED) and done * 2 > total:
            assert unfinished(tmp_path)
            raise Stopped

    with pytest.raises(Stopped):
        model().download(stop)
    assert unfinished(tmp_path) == []
    assert model().cached_folder() is None
    held.set()
    assert model().download(silent) == ""
    again = hub.downloaded(NAME)[len(NEEDED) :]
    assert again == [UNET], "complete files stay"


def test_waiting_thread_stays_active_during_a_download(hub: HubServer) -> None:
    held = threading.Event()
    hub.repositories[NAME].hold = {UNET: held}
    looks: list[float] = []

    def look(done: int, total: int) -> None:
        if hub.halfway.is_set():
            looks.append(time.thread_time())
            if len(looks) == 3:
                held.set()

    assert model().download(look) == ""
    assert looks[0] < looks[2], "it is on the processor now and then, which is how the watchdog sees it live"


def test_killed_run_ends_its_download(hub: HubServer, tmp_path: Path) -> None:
    hub.repositories[NAME].hold = {UNET: threading.Event()}
    program = (
        "from modules.diffusion.hub.model import HubModel\n"
        f"HubModel({NAME!r}, '', {PARTS!r}, ('SomePipeline',)).download(lambda done, total: None)\n"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hf" / "hub")}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=ROOT) as run:
        until(lambda: bool(hub.halfway.is_set() and unfinished(tmp_path)), "half a file")
        run.kill()
    until(lambda: unfinished(tmp_path) == [], "the end of the download")


def test_killed_download_is_a_sentence(hub: HubServer) -> None:
    hub.repositories[NAME].hold = {UNET: threading.Event()}

    def kill(done: int, total: int) -> None:
        for process in psutil.Process().children() if hub.halfway.is_set() else []:
            with suppress(psutil.Error):  # it is gone already
                if "modules.diffusion.hub.download" in process.cmdline():
                    process.kill()

    with pytest.raises(TrainingError, match=r"downloading 'owner/model' was terminated\. Start again"):
        model().download(kill)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache on a disk of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("small disks can be made by root only")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(disk))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_disk_is_too_small_or_fills_up(hub: HubServer, small_disk: Path, tmp_path: Path) -> None:
    unet = tmp_path / "model" / UNET
    unet.write_bytes(b"x" * 600_000)
    with pytest.raises(ConfigError, match=r"is too full to download 'owner/model'. It needs 0.0 GB.*set HF_HOME"):
        model().download(silent)
    assert UNET not in hub.downloaded(NAME), "it was known before"
    unet.write_bytes(b"x" * 300_000)
    held = threading.Event()
    hub.repositories[NAME].hold = {UNET: held}

    def fill(done: int, total: int) -> None:
        if hub.halfway.is_set() and not held.is_set():
            try:
                (small_disk / "others").write_bytes(b"x" * 512_000)
            except OSError:
                held.set()

    with pytest.raises(ConfigError, match=r"is too full to download 'owner/model'\. Free space there"):
        model().download(fill)
    assert unfinished(small_disk) == []
    (small_disk / "others").unlink()
    assert model().download(silent) == ""


@pytest.mark.skipif(os.name == "nt", reason="permissions are others there")
def test_read_only_cache_is_used_if_complete(hub: HubServer, tmp_path: Path) -> None:
    assert model().download(silent) == ""
    cache = tmp_path / "hf" / "hub"
    mount = ["mount", "--bind", "-o", "ro", str(cache), str(cache)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can make a folder read-only for itself")
    try:
        assert model().download(silent) == ""
        hub.add("owner/other", write(tmp_path / "other", *NEEDED))
        with pytest.raises(ConfigError, match=r"'owner/other' cannot be downloaded to .*Read-only.*Set HF_HOME"):
            model("owner/other").download(silent)
    finally:
        subprocess.run(["umount", "-l", str(cache)], check=True)


def test_a_model_in_one_folder(hub: HubServer, tmp_path: Path) -> None:
    """As captioning loads one: no pickles, no code, nothing in subfolders."""
    needed = {"config.json", "tokenizer.json", "merges.txt", "chat_template.jinja", "model.safetensors"}
    others = ("pytorch_model.bin", "modeling_own.py", "README.md", "onnx/model.onnx", "original/model.safetensors")
    folder = write(tmp_path / "blip", *needed, *others)
    (folder / "config.json").write_text('{"model_type": "blip"}')
    hub.add("owner/blip", folder)
    model = HubModel("owner/blip", "", (), ("blip", "git"), kind="transformers")
    cached = model.ensure_cached(silent)
    assert {each.name for each in cached.iterdir()} == needed == set(hub.downloaded("owner/blip"))
    assert model.cached_folder() == cached
    (cached / "model.safetensors").unlink()
    assert model.cached_folder() is None


def test_required_files(tmp_path: Path) -> None:
    shards = [f"unet/diffusion_pytorch_model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = "unet/diffusion_pytorch_model.safetensors.index.json"
    split = ["model_index.json", "unet/config.json", index, *shards]
    assert sorted(required_files("m", split, ["unet"], weights=True)) == sorted(split)
    assert set(required_files("m", [*split, UNET], ["unet"], weights=True)) == {split[0], split[1], UNET}
    half = [name.replace(".safetensors", ".fp16.safetensors") for name in NEEDED]
    chosen = set(required_files("m", half, PARTS, weights=True))
    assert "unet/diffusion_pytorch_model.fp16.safetensors" in chosen
    assert not any("safetensors" in name for name in required_files("m", half, PARTS, weights=False))
    folder = write(tmp_path / "m", *split)
    (folder / index).write_text(json.dumps({"weight_map": {"a": Path(shards[0]).name, "b": Path(shards[1]).name}}))
    assert is_complete(folder, ["unet"], weights=True)
    (folder / shards[1]).unlink()
    assert not is_complete(folder, ["unet"], weights=True)
    with pytest.raises(ConfigError, match=r"no file \.safetensors\.index\.json"):
        required_files("m", [split[0], split[1], *shards], ["unet"], weights=True)

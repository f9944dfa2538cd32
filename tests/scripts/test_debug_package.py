"""scripts/debug_package.py: lists what it would write, asks, and holds nothing private."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from modules.run import RunFolder
from scripts import debug_package
from tests.app.fake_runs import make_fake_run

pytestmark = pytest.mark.slow

SECRET = "hf_" + "aB3" * 11
PASSWORD = "correcthorse"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = make_fake_run(
        tmp_path / "runs" / "cats",
        steps=4000,  # 1,600 s
        samples_every=1000,
        concepts=[{"path": str(Path.home() / "photos" / "anna"), "prompt_prefix": "my secret idea"}],
        samples=[
            {"prompt": "a blue square on black"},
            {"prompt": "{Anna|Anna} in {Rome|Rome}", "negative_prompt": "{dark|dark} walls", "seed": 3},
            {"prompt": "{portrait|training} of a king"},
        ],
    )
    folder.console_file.write_text(
        f"TANDEM_JOIN_TOKEN='0123456789abcdef' ./train_distributed.sh --join 10.0.0.1\n{SECRET}\n"
        f"{Path.home()}/photos/anna/1.png cannot be read\nprompt a blue square on black is drawn\n"
        "The sample 'Anna in Rome' is left out, without dark walls.\n"
        "1 is longer than 77 tokens and truncated, for example 'my holidays'... (shorten it); training_mode stays.\n"
        "Step 4: the sample 'mine alone' (64x64) failed, only now it did not.\n"
        "C:\\Users\\anna\\x /home/anna/y\n/mnt/home/anna/z /root/w max_token: 77\n"
        f"password: {PASSWORD}\nsmb_password = {PASSWORD}\napi token = {PASSWORD}\nAuthorization: Basic {PASSWORD}=\n"
        f"sk-ant-api03-{PASSWORD * 3} AKIA{'A1B2' * 4} wandb: logged in with {'0a1b2c3d' * 5}\n"
        f"train_distributed.sh --token_file /run/{PASSWORD}\n--hub_password {PASSWORD}\nCookie: id={PASSWORD}\n"
        f"secret_key='{PASSWORD}'\nmachine h login u password {PASSWORD}\nnpm_{PASSWORD * 3}\n"
        f"eyJhbGciOiJI.eyJ{PASSWORD}.{PASSWORD}\n"
        f"sshpass -p {PASSWORD} ssh h\ncurl -s -u anna:{PASSWORD} h\nserver=h;pwd={PASSWORD}\n/MASTER_KEY={PASSWORD}\n"
        'pad_token: "<pad_token>", eos_token=<|endoftext|> PWD=/data/x\n'
        f"-----BEGIN RSA PRIVATE KEY-----\n{PASSWORD}\n-----END RSA PRIVATE KEY-----\n"
    )
    custom = {"type": "sample", "t": 1.0, "file": "samples/step-000004-custom-00.png", "prompt": "only now", "step": 4}
    with folder.events_file.open("a") as events:
        events.write(f"{json.dumps(custom)}\n")
    folder.join_line_file.write_text("TANDEM_JOIN_TOKEN=0123456789abcdef")
    (folder.log_dir / "rank-0.txt").write_text("line\n" * 100_000)
    (folder.model_dir).mkdir()
    (folder.model_dir / "model.safetensors").write_bytes(b"weights")
    return folder


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """In this process, with nobody who answers."""
    argv, out, error = [*map(str, arguments)], io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "stdin", io.StringIO())
        code = debug_package.main(argv)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), error.getvalue())


def test_package_is_listed_then_written_and_holds_nothing_private(run: RunFolder, tmp_path: Path) -> None:
    file = tmp_path / "cats.zip"
    asked = call(run.path, "--output", file)
    assert asked.returncode == 2
    assert "Nothing is written yet" in asked.stderr
    assert "events.jsonl" in asked.stdout
    assert not file.exists()

    done = call(run.path, "--output", file, "--yes")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(file) as package:
        texts = {name: package.read(name).decode() for name in package.namelist()}
    assert {"about.txt", "config.json", "events.jsonl", "versions.txt", "devices.txt", "log/console.txt"} <= set(texts)
    assert "log/join_line.txt" not in texts
    assert not any(name.endswith((".png", ".safetensors")) for name in texts)
    whole = "\n".join(texts.values())
    masked = (PASSWORD, "A1B2", "0a1b2c", "/root", "/mnt/home")
    assert "log/console.txt (21)" in texts["about.txt"], "what was masked is said"
    assert "max_token: 77" in texts["log/console.txt"]
    assert 'pad_token: "<pad_token>", eos_token=<|endoftext|> PWD=/data/x' in texts["log/console.txt"]
    for private in (
        SECRET,
        "0123456789abcdef",
        str(Path.home()),
        "anna/x",
        "\\anna",
        "my secret idea",
        "blue square",
        "Anna in Rome",
        "dark walls",
        "my holidays",
        "mine alone",
        "only now",
        *masked,
    ):
        assert private not in whole, private
    assert "~/photos/anna/1.png cannot be read" in texts["log/console.txt"]
    assert "training_mode stays" in texts["log/console.txt"]
    assert len(texts["log/rank-0.txt"]) <= 256 << 10, "the end of a long log"
    events = [json.loads(line) for line in texts["events.jsonl"].splitlines()]
    steps = [event["step"] for event in events if event["type"] == "step"]
    assert events[0]["type"] == "started"
    assert steps[-1] == 4000
    assert 2400 <= steps[0] <= 2520, "of the last ten minutes"
    assert "torch==" in texts["versions.txt"]
    assert "CPU" in texts["devices.txt"]


@pytest.mark.parametrize("place", ["log/zz.txt", "machine-7.json", "log"])
def test_link_in_a_foreign_folder_gets_nothing_into_the_package(run: RunFolder, tmp_path: Path, place: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "zz.txt").write_text('{"machine": "mine"}')
    link = run.path / place
    if link.is_dir():
        shutil.rmtree(link)
    link.symlink_to(secret if place == "log" else secret / "zz.txt")
    done = call(run.path, "--output", tmp_path / "cats.zip", "--yes")
    assert done.returncode == 2
    assert f"{link} is a link" in done.stderr
    assert not (tmp_path / "cats.zip").exists()


def test_show_prints_all_and_writes_nothing(run: RunFolder, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    shown = call(run.path, "--show")
    assert shown.returncode == 0
    assert "==> versions.txt <==" in shown.stdout
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere is not a run folder"),
        (["--output", "x.txt"], "must end in .zip"),
        (["--output", "no/where/x.zip"], "there is no folder"),
    ],
)
def test_mistakes_are_named(arguments: list[str], words: str) -> None:
    done = call(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr

"""A config, run folder or model that names a Python file runs nothing of it until a person has allowed the file."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modules import ROOT
from modules.config import TrainConfig, save_config, trusted_code
from modules.families._by_name import family_class
from modules.run.exit_codes import NO_DATA
from scripts import backup as export
from scripts import preflight, sample, submit_slurm, train


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """(a config whose family is a Python file, what that file writes if it runs)."""
    monkeypatch.setenv(trusted_code.VARIABLE, "")
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "home"))
    marker, family = tmp_path / "marker", tmp_path / "theirs.py"
    family.write_text(
        "from pathlib import Path\nfrom tests import tiny_family\n"
        f"Path({str(marker)!r}).touch()\nclass Theirs(tiny_family.TinyFamily): ...\n"
    )
    config = TrainConfig.model_validate(
        {
            "family": str(family),
            "device": "cpu",
            "runs_dir": str(tmp_path / "runs"),
            "cache_dir": str(tmp_path / "cache"),
            "concepts": [{"path": str(tmp_path)}],
        }
    )
    save_config(config, tmp_path / "theirs.json")
    return tmp_path / "theirs.json", marker


@pytest.mark.slow
def test_no_program_runs_it(hostile: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    config, marker = hostile
    folder = config.parent
    run = folder / "runs" / "theirs"
    backup = run / "backup" / "step-000001"
    for place in (run, backup, folder / "model"):
        place.mkdir(parents=True)
        (place / "config.json").write_text(config.read_text())
    (folder / "model" / "tandem.json").write_text(json.dumps({"config": json.loads(config.read_text())}))
    for program, arguments in (
        (train.main, ["--config", str(config)]),
        (train.main, ["--config", str(config), "--dry_run"]),
        (train.main, ["--config", str(folder / "theirs.py"), "--dry_run"]),
        (train.main, ["--set", f"family={folder / 'theirs.py'}", "--set", f"runs_dir={folder / 'runs'}"]),
        (train.main, ["--config", str(config), "--verify_parity"]),
        (train.main, ["--resume", "latest", "--set", f"runs_dir={folder / 'runs'}"]),
        (train.main, ["--resume", str(backup)]),
        (export.main, ["export", str(run), "1"]),
        (preflight.main, ["--config", str(config)]),
        (submit_slurm.main, ["--config", str(config), "--gpus", "1", "--cpu", "--dry_run"]),
        (sample.main, ["--model", str(folder / "model"), "--prompt", "x"]),
    ):
        assert program(arguments) == 2, arguments
        said = capsys.readouterr().err
        assert "runs only after you have allowed it" in said or program is sample.main, (arguments, said)
        assert not marker.exists(), arguments
    with pytest.raises(trusted_code.CodeNotTrusted):
        family_class(str(folder / "theirs.py"))
    done = subprocess.run(
        [sys.executable, "-m", "modules.families.describe", str(folder / "theirs.py")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert not marker.exists()


def test_the_same_file_in_a_foreign_folder_does_not_run_the_helper_that_is_there(
    hostile: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = hostile[1]
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, helper in (("mine", ""), ("theirs", f"open({str(marker)!r}, 'w').close()\n")):
        folder = marker.parent / name
        folder.mkdir()
        (folder / "some_nets.py").write_text(helper)
        (folder / "tmpl.py").write_text(
            "import os, sys; sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))\nimport some_nets\n"
            "from tests import tiny_family\nclass Own(tiny_family.TinyFamily): ...\n"
        )
        trust = ["--trust_code"] if name == "mine" else []
        train.main(["--set", f"family={folder / 'tmpl.py'}", "--dry_run", *trust])
        sys.modules.pop("some_nets", None)
    assert f"tmpl.py' (which imports {marker.parent / 'theirs' / 'some_nets.py'}), which" in capsys.readouterr().err
    assert not marker.exists()


@pytest.mark.slow
def test_a_person_at_a_terminal_is_asked_once(hostile: tuple[Path, Path]) -> None:
    config, marker = hostile
    assert "may it run? [y/N]" in at_a_terminal(config, b"n\n")
    assert not marker.exists()
    assert "may it run? [y/N]" in at_a_terminal(config, b"y\n")
    assert marker.exists()
    marker.unlink()
    assert train.main(["--config", str(config), "--dry_run"]) == NO_DATA, "the folder has no images"
    assert marker.exists(), "remembered"


def at_a_terminal(config: Path, answer: bytes) -> str:
    """What `--dry_run` shows in a terminal in which a person types `answer` when asked."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "scripts/train.py", "--config", str(config), "--dry_run"]
    child = subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(os.environ))
    os.close(theirs)
    shown, answered, deadline = b"", False, time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the child has closed the terminal
                break
        if not answered and b"[y/N]" in shown:
            os.write(ours, answer)
            answered = True
    child.wait(60)
    os.close(ours)
    return shown.decode(errors="replace")

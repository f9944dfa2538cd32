"""`python scripts/import_config.py`, and the page that is written from its tables."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config import load_config
from modules.importers.rules import ANY
from scripts import import_config, import_reference
from tests.runs import TINY

ROOT = Path(__file__).resolve().parents[2]
THEIRS = {
    "training_method": "FINE_TUNE",
    "model_type": "STABLE_DIFFUSION_15",
    "base_model_name": "a/b",
    "epochs": 17,
    "attention_mechanism": "FLASH",
    "concepts": [],
    "samples": [],
}


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    (tmp_path / "theirs.json").write_text(json.dumps(THEIRS), encoding="utf-8")
    return tmp_path / "theirs.json"


@pytest.mark.slow
def test_what_it_says_and_writes(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = theirs.with_name("ours.yaml")
    assert import_config.main([str(theirs), "-o", str(out), "--set", "learning_rate=1e-5"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "Not imported (1)" in said.out
    assert "To be set before it can start (1)\n  concepts: there is no concept that is switched on." in said.out
    assert f"--config {out}" in said.out
    config = load_config(out)
    assert (config.epochs, config.learning_rate) == (17, 1e-5)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="its pipes close otherwise")
def test_a_reader_that_has_read_enough_ends_nothing(theirs: Path) -> None:
    """As with `| head -1`: the config is written, and there is no traceback."""
    out = theirs.with_name("ours.yaml")
    reading, writing = os.pipe()
    os.close(reading)
    light = [
        "--set",
        f"family={TINY}",
        "--set",
        "family_options={}",
    ]  # without diffusers
    command = [sys.executable, "scripts/import_config.py", str(theirs), "-o", str(out), *light]
    with os.fdopen(writing) as closed:
        ended = subprocess.run(command, cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert load_config(out).epochs == 17


def test_without_a_target_nothing_is_written(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_config.main([str(theirs)]) == 0
    assert "Nothing was written" in capsys.readouterr().out
    assert list(theirs.parent.iterdir()) == [theirs]


def test_the_report_is_shown_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = tmp_path / "\u202ea.json"
    theirs.write_text(json.dumps({**THEIRS, "a\x1b[2J\nImported (9)": "\u202eb", "\ud800": 1}), encoding="ascii")
    assert import_config.main([str(theirs)]) == 0
    said = capsys.readouterr().out
    assert r"\u202ea.json" in said
    assert r"  a\x1b[2J\nImported (9) " in said
    assert r"  \ud800 1: " in said
    assert all(line.isprintable() for line in said.splitlines())


def test_a_file_that_exists_is_replaced_only_on_demand(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = theirs.with_name("ours.json")
    out.write_text("mine", encoding="utf-8")
    assert import_config.main([str(theirs), "-o", str(out)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == "mine"
    assert import_config.main([str(theirs), "-o", str(out), "--overwrite"]) == 0
    assert load_config(out).epochs == 17


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["gone.json"], "gone.json does not exist"),
        (["THEIRS", "-o", "out.txt"], "the name must end in .yaml, .yml or .json"),
        (["THEIRS", "-o", "no/such/folder/out.yaml"], "out.yaml cannot be written"),
        (["THEIRS", "-o", f"{'x' * 300}.yaml"], "cannot be written: File name too long"),
        (["THEIRS", "--set", "epochs=0"], "epochs is 0; it must be"),
        (["THEIRS", "--set", "epoch=3"], "did you mean epochs"),
    ],
)
def test_what_cannot_be_used_gets_one_sentence(
    theirs: Path, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(theirs) if argument == "THEIRS" else argument for argument in arguments]
    assert import_config.main(given) == 2
    reported = capsys.readouterr().err
    assert expected in reported
    assert reported.startswith("Nothing was imported: ")
    assert "Traceback" not in reported


def test_the_committed_page_is_up_to_date() -> None:
    command = [sys.executable, "scripts/import_reference.py", "--check"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_page_speaks_of_what_can_occur() -> None:
    page = import_reference.render()
    assert import_reference._default(ANY) == "-"  # and not the object
    assert "`unconditional_transformer.*`" in page
    assert "unconditional_transformer.model_name" not in page
    assert "no family of Tandem has" not in page
    assert re.findall(r"\ba [aeio]\w*", page) == []

"""The declarations of families, which the window keeps: a damaged or strange file of them harms nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.family_declaration import load_declaration
from modules.config import ConfigError

FAMILY = "pixel_diffusion"
DEEP = "[" * 100_000 + "]" * 100_000


def describing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let every family describe itself by this text."""
    monkeypatch.setattr("app.family_declaration._run_describe", lambda name: text)


@pytest.mark.parametrize("damaged", ["", "{}", DEEP, '{"options": [5], "methods": [], "parts": [], "size_step": 8}'])
def test_a_damaged_entry_is_asked_for_again(home: Path, monkeypatch: pytest.MonkeyPatch, damaged: str) -> None:
    kept = home / "preferences" / "families.json"
    (stamp,) = whole = json.loads(kept.read_text())
    kept.write_text(json.dumps({stamp: damaged}))
    describing(monkeypatch, whole[stamp])
    assert load_declaration(FAMILY).methods
    assert json.loads(kept.read_text()) == whole


@pytest.mark.parametrize("described", [DEEP, '{"options": [], "methods": [], "parts": [], "size_step": 0}'])
def test_what_cannot_be_read_is_an_error_and_not_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, described: str
) -> None:
    kept = home / "preferences" / "families.json"
    kept.unlink()
    describing(monkeypatch, described)
    with pytest.raises(ConfigError, match="The options reported by pixel_diffusion cannot be read"):
        load_declaration(FAMILY)
    assert not kept.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_a_named_pipe_in_its_place_is_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = home / "preferences" / "families.json"
    ((_, described),) = json.loads(kept.read_text()).items()
    kept.unlink()
    os.mkfifo(kept)
    describing(monkeypatch, described)
    assert load_declaration(FAMILY).methods
    assert kept.is_file()

"""What a killed process leaves: half of something goes, what was to be replaced by it comes back."""

from __future__ import annotations

import os
from pathlib import Path

from modules.files import remove_partial


def test_only_complete_things_stay(tmp_path: Path) -> None:
    living = f".partial-{os.getpid()}-report.html"
    for name in (
        ".partial-step-000002", ".partial-former-step-000002", ".partial-old-step-000001",
        ".partial-former-step-000003", "step-000003", ".partial-model", ".former-model", living, ".partial-99999999-x",
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "written as").write_text(name)
    remove_partial(tmp_path)
    stayed = {each.name: (each / "written as").read_text() for each in tmp_path.iterdir()}
    assert stayed == {
        "step-000002": ".partial-former-step-000002",
        "step-000003": "step-000003",
        "model": ".former-model",
        living: living,
    }


def test_what_another_program_may_be_writing_stays(tmp_path: Path) -> None:
    names = [".partial-99999999-report.html", ".partial-model", ".partial-model.safetensors"]
    for name in names:
        (tmp_path / name).touch()
    remove_partial(tmp_path, only="model")
    assert [each.name for each in tmp_path.iterdir()] == names[2:]


def test_nothing_is_touched_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "other" / ".partial-x").mkdir(parents=True)
    (tmp_path / "backup").symlink_to(tmp_path / "other")
    remove_partial(tmp_path / "backup")
    assert (tmp_path / "other" / ".partial-x").is_dir()

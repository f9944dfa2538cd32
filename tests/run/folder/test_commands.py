"""Command files in commands/."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.run import Commands, RunFolder, SilentCommands, request_command
from modules.run.folder.commands import clear_commands


def test_commands_are_read_and_removed(folder: RunFolder) -> None:
    commands = Commands(folder, every_s=0)
    assert commands.pending() == {}
    request_command(folder, "stop", "interrupted")
    (folder.commands_dir / "sample").touch()
    (folder.commands_dir / "nonsense").touch()
    assert commands.pending() == {"stop": "interrupted", "sample": ""}
    commands.done("stop")
    assert commands.pending() == {"sample": ""}
    assert not (folder.commands_dir / "stop").exists()
    commands.done("stop")


def test_folder_is_polled_at_intervals(folder: RunFolder) -> None:
    commands = Commands(folder, every_s=60)
    assert commands.pending() == {}
    request_command(folder, "backup")
    assert commands.pending() == {}


def test_missing_folder_and_undecodable_text_are_harmless(tmp_path: Path) -> None:
    commands = Commands(RunFolder(tmp_path / "gone"), every_s=0)
    assert commands.pending() == {}
    request_command(RunFolder(tmp_path / "gone"), "save")
    (tmp_path / "gone" / "commands" / "save").write_bytes(b"\xff" * 1000)
    assert len(commands.pending()["save"]) == 200


def test_undeletable_command_is_run_once(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    commands = Commands(folder, every_s=0)
    request_command(folder, "sample")
    assert "sample" in commands.pending()
    monkeypatch.setattr(Path, "unlink", refuse)
    commands.done("sample")
    assert commands.pending() == {}


def test_unknown_command_error_lists_the_known_ones(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match="'explode'; use one of stop, backup, save, sample"):
        request_command(folder, "explode")


def test_clear_removes_all_commands(folder: RunFolder) -> None:
    request_command(folder, "stop")
    clear_commands(folder)
    assert Commands(folder, every_s=0).pending() == {}


def test_silent_commands_have_the_same_methods() -> None:
    public = {name for name in vars(Commands) if not name.startswith("_")}
    assert public == {name for name in vars(SilentCommands) if not name.startswith("_")}

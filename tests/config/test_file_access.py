"""Only this user can read what the programs write, unless TANDEM_UMASK says otherwise; what exists is left alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.preferences import Preferences
from modules.config import ConfigError, TrainConfig
from modules.config.file_access import VARIABLE, OtherUsersFile, other_owner, require_own, set_file_access, umask_of
from modules.config.imported_code import CodeFile
from modules.config.trusted_code import describe_code, is_trusted, require_trusted, trust_code
from modules.run import RunFolder
from modules.run.join import allowed_paths
from modules.run.join.same_run import prove_run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The umask of most systems, and the previous one again afterwards."""
    previous = os.umask(0o022)
    yield
    os.umask(previous)


def modes(*files: Path) -> list[str]:
    """The access rights, as `chmod` takes them."""
    return [f"{file.stat().st_mode & 0o777:o}" for file in files]


@pytest.mark.parametrize(
    ("value", "folder", "file"),
    [("", "700", "600"), ("007", "770", "660"), ("0022", "755", "644"), ("077", "700", "600")],
)
def test_new_files_are_private_and_existing_ones_stay(tmp_path: Path, value: str, folder: str, file: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    set_file_access({VARIABLE: value})
    run = RunFolder.create(TrainConfig(runs_dir=str(shared), run_name="x"))
    assert modes(shared, run.path, run.log_dir, run.config_file) == ["755", folder, folder, file]


def test_an_old_run_folder_goes_on_as_it_is(tmp_path: Path) -> None:
    RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="x"))
    set_file_access({})
    run = RunFolder.open(tmp_path, "x")
    (run.log_dir / "new.txt").touch()
    assert modes(run.path, run.log_dir, run.config_file, run.log_dir / "new.txt") == ["755", "755", "644", "600"]


def test_preferences_and_allowed_code_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("TANDEM_TRUST_CODE", "")
    set_file_access({})
    Preferences().save()
    trust_code([CodeFile(tmp_path / "x.py", b"x = 1\n")])
    home = tmp_path / "home"
    assert modes(home, *sorted(home.iterdir())) == ["700", "600", "600"]


@pytest.mark.parametrize("value", ["rw", "8", "777", "700", "0o077", "-77"])
def test_what_is_no_umask_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=f"{VARIABLE} is '{value}'"):
        set_file_access({VARIABLE: value})


def test_a_shared_cache_of_another_program_stays_shared(tmp_path: Path) -> None:
    for mode, umask in ((0o775, 0o002), (0o755, 0o022), (0o700, 0o077)):
        folder = tmp_path / oct(mode)
        folder.mkdir()
        folder.chmod(mode)
        assert umask_of(folder) == umask
    assert umask_of(tmp_path / "missing") == -1, "the umask that all programs have"


@pytest.mark.parametrize("value", ["", "007", "002"])
def test_what_the_user_has_allowed_is_private_whatever_is_shared(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who could write these files could allow code, and paths, in the name of this user."""
    home = tmp_path / "home" / ".config" / "tandem"
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(home))
    monkeypatch.setenv("TANDEM_TRUST_CODE", "")
    set_file_access({VARIABLE: value})
    Preferences().save()
    trust_code([CodeFile(tmp_path / "x.py", b"x = 1\n")])
    allowed_paths._remember(tmp_path)
    assert modes(home.parent.parent, home.parent, home) == ["700"] * 3
    assert modes(home / "trusted_code.json", home / "allowed_paths.json") == ["600"] * 2
    prove_run(RunFolder.create(TrainConfig(runs_dir=str(tmp_path / "runs"), run_name="x")), "0" * 32)
    shared = {"": "600", "007": "660", "002": "660"}[value]  # of the run, but never for all users
    assert modes(tmp_path / "runs" / "x" / "join_keys.json") == [shared]


def test_what_others_could_have_allowed_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, file = tmp_path / "home", tmp_path / "x.py"
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(home))
    config = TrainConfig.model_validate({"base_model": str(tmp_path)})
    for path, mode in ((home / "trusted_code.json", 0o620), (home / "allowed_paths.json", 0o602), (home, 0o770)):
        monkeypatch.setenv("TANDEM_TRUST_CODE", "")
        trust_code([CodeFile(file, b"x")])
        monkeypatch.setenv("TANDEM_TRUST_CODE", "")
        allowed_paths._remember(tmp_path)
        require_trusted([CodeFile(file, b"x")])
        allowed_paths.check_paths(config, [], "", [], None)
        path.chmod(mode)
        told = []
        for check in (
            lambda: require_trusted([CodeFile(file, b"x")]),
            lambda: allowed_paths.check_paths(config, [], "", [], None),
        ):
            try:
                check()
            except ConfigError as error:
                told.append(str(error))
        assert len(told) == (2 if path == home else 1)
        assert all(f"{path} is ignored, because other users can write it: chmod go-w {path}" in each for each in told)
    assert "is ignored" in describe_code([CodeFile(file, b"x")])
    trust_code([CodeFile(file, b"x")])
    assert modes(home) == ["750"], "the folder is mended with the next answer"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_what_belongs_to_another_user_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("TANDEM_TRUST_CODE", "")
    trust_code([CodeFile(tmp_path / "x.py", b"x")])
    monkeypatch.setenv("TANDEM_TRUST_CODE", "")
    assert is_trusted([CodeFile(tmp_path / "x.py", b"x")])
    os.chown(tmp_path / "home" / "trusted_code.json", 12345, -1)
    with pytest.raises(ConfigError, match="is ignored, because it belongs to another user"):
        require_trusted([CodeFile(tmp_path / "x.py", b"x")])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_whose_files_are_read_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_UMASK", raising=False)
    file = tmp_path / "file"
    assert other_owner(file) == "", "there is none"
    file.touch()
    assert other_owner(file) == ""
    os.chown(file, 12345, os.getegid())
    assert other_owner(file) == "12345"
    with pytest.raises(OtherUsersFile, match=r"file belongs to another user of this computer, 12345, so.*\. Copy it"):
        require_own(file, "Copy it")
    monkeypatch.setenv("TANDEM_UMASK", "027")
    assert other_owner(file) == "12345", "the group may read, not write"
    monkeypatch.setenv("TANDEM_UMASK", "007")
    assert other_owner(file) == "", "of a team that shares its files"
    os.chown(file, 1, 54321)
    assert other_owner(file) == file.owner()
    os.chown(file, 65534, 54321)
    assert other_owner(file) == "", "as a network drive gives it what root has written"
    monkeypatch.setattr("os.geteuid", lambda: 1)
    assert other_owner(file) == file.owner()
    monkeypatch.undo()
    monkeypatch.setattr("modules.config.file_access.ROOT", file)
    assert other_owner(file) == "", "who owns Tandem's own files needs no others"


@pytest.mark.parametrize("value", ["000", "020", "0005"])
def test_a_umask_by_which_all_users_could_write_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=f"{VARIABLE} is '{value}', which would let every user"):
        set_file_access({VARIABLE: value})

"""Python files that a config names: allowed by content, remembered, and asked about again if they change."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from modules import ROOT
from modules.config import ConfigError, imported_code, validate
from modules.config.imported_code import CodeFile
from modules.config.trusted_code import (
    VARIABLE,
    CodeNotTrusted,
    allow_code,
    allow_family,
    foreign_classes,
    is_trusted,
    require_trusted,
    trust_code,
)


@pytest.fixture(autouse=True)
def nothing_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "home"))


def test_allowed_content_is_remembered_and_a_change_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "theirs.py"
    file.write_text("a = 1\n")
    with pytest.raises(CodeNotTrusted, match=r"theirs\.py.*runs only after you have allowed it.*--trust_code"):
        allow_family(str(file), trust=False, ask=None)
    asked: list[str] = []
    with pytest.raises(CodeNotTrusted):
        allow_family(str(file), trust=False, ask=lambda described: bool(asked.append(described)))
    assert str(file) in asked[0]
    allow_family(str(file), trust=False, ask=lambda described: True)
    monkeypatch.setenv(VARIABLE, "")  # as in the next start
    allow_family(str(file), trust=False, ask=None)
    file.write_text("a = 2\n")
    with pytest.raises(CodeNotTrusted):
        allow_family(str(file), trust=False, ask=None)
    allow_family(str(file), trust=True, ask=None)


def test_the_files_that_it_imports_are_allowed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, helper = tmp_path / "mine.py", tmp_path / "nets.py"
    file.write_text("import sys\nsys.path.append(sys.path[0])\nimport nets\n")
    allow_family(str(file), trust=True, ask=None)  # before it had a helper
    helper.write_text("a = 1\n")
    monkeypatch.setenv(VARIABLE, "")
    asked: list[str] = []

    def answer(yes: bool) -> None:
        allow_family(str(file), trust=False, ask=lambda described: bool(asked.append(described)) or yes)

    with pytest.raises(CodeNotTrusted, match=r"mine\.py' \(which imports \S+nets\.py\), which runs only after"):
        answer(yes=False)
    first, second = asked[0].splitlines()
    assert first.startswith(f"as its family, the Python file {file} (")
    assert second.split()[0] == str(helper)
    assert "allowed before), which imports" in asked[0]
    answer(yes=True)
    monkeypatch.setenv(VARIABLE, "")  # as in the next start
    allow_family(str(file), trust=False, ask=None)
    for name, content in (("nets.py", "a = 2\n"), ("nets.py", "import more\n"), ("more.py", "b = 1\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(CodeNotTrusted, match=name):
            allow_family(str(file), trust=False, ask=None)
        allow_family(str(file), trust=True, ask=None)
    assert len(os.environ[VARIABLE].split(",")) == 4, "the file, both nets.py, more.py"


def test_built_in_families_are_not_asked_about() -> None:
    allow_family("pixel_diffusion", trust=False, ask=None)


def test_processes_that_are_started_inherit_the_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", "/proc/nothing/can/be/written/here")
    trust_code([CodeFile(tmp_path / "x.py", b"x")])
    require_trusted([CodeFile(tmp_path / "x.py", b"x")])
    assert not is_trusted([CodeFile(tmp_path / "x.py", b"y")])


def test_what_is_passed_on_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with an environment of more than 128 KiB, on Windows 32, does not start."""
    monkeypatch.setenv("TANDEM_CONFIG_DIR", "/proc/nothing/can/be/written/here")
    monkeypatch.setenv(VARIABLE, "any,")
    files = [CodeFile(tmp_path / "x.py", b"%d" % number) for number in range(900)]
    for several in (files[:300], files[300:600], files[:300], files[600:]):
        trust_code(several)
    passed_on = os.environ[VARIABLE].split(",")
    assert passed_on == ["any", *(file.sha256 for file in (*files[200:300], *files[600:]))]
    assert len(os.environ[VARIABLE]) < 32_000


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"sha256": "any"}]', "[" * 100_000])
def test_a_damaged_memory_allows_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "trusted_code.json").write_text(content)
    file = CodeFile(tmp_path / "x.py", b"x")
    assert not is_trusted([file])
    trust_code([file])
    assert [entry["file"] for entry in json.loads((tmp_path / "home" / "trusted_code.json").read_text())] == [
        str(tmp_path / "x.py")
    ]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for name, fault in (("gone.py", "there is no file"), ("folder.py", "is a folder, not a file")):
        (tmp_path / "folder.py").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=fault):
            allow_family(str(tmp_path / name), trust=True, ask=None)


def test_a_class_of_another_package_is_asked_about_before_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "their_steps"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "small.py").write_text(
        "import os\nimport torch\n\nos.environ['THEIRS_RAN'] = '1'\n\n\nclass Small(torch.optim.SGD):\n    pass\n\n\n"
        "class Halving(torch.optim.lr_scheduler.StepLR):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imported_code, "_AT_START", (str(tmp_path),))  # as PYTHONPATH does
    monkeypatch.delenv("THEIRS_RAN", raising=False)
    given = {"optimizer": "their_steps.small.Small", "scheduler": "their_steps.small.Halving"}
    config = validate({**given, "scheduler_arguments": "step_size = 2"}, "a test")
    optimizers = importlib.import_module("modules.training.optim.optimizers")
    for use in (partial(allow_code, config, trust=False, ask=None), partial(optimizers.check_optimizer, config, None)):
        with pytest.raises(
            CodeNotTrusted, match=r"optimizer\.target is the Python file '\S+small\.py' \(which imports"
        ):
            use()
    assert "THEIRS_RAN" not in os.environ
    asked: list[str] = []
    allow_code(config, trust=False, ask=lambda described: not asked.append(described))
    assert len(asked) == 1, "the scheduler is of the same file"
    assert asked[0].startswith(f"as its optimizer, the Python file {package / 'small.py'} (")
    optimizers.check_optimizer(config, None)
    importlib.import_module("modules.training.optim.own_schedule").check_scheduler(config, None, None)
    assert not foreign_classes(validate({"optimizer": "torch.optim.Adagrad", "scheduler": "linear"}, "a test"))


def test_a_variable_makes_no_folder_one_of_the_environment(tmp_path: Path) -> None:
    """It says what sys.path was before a user's file added to it, to processes that begin with all of it."""
    code = "import sys\nfrom modules.config.imported_code import is_of_environment as of\nprint(*map(of, sys.argv[1:]))"
    given = {"TANDEM_IMPORT_PATH": f"{tmp_path}{os.pathsep}{tmp_path / 'lib'}", "PYTHONPATH": f"{tmp_path / 'lib'}"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.py"), str(tmp_path / "lib" / "a.py")],
        cwd=ROOT, env=os.environ | given, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["False", "True"]


def test_a_class_in_a_folder_of_tandem_is_of_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a foreign run's, whose bytecode and imports nobody would be asked about; scripts add ROOT to sys.path."""
    monkeypatch.syspath_prepend(str(ROOT))
    config = validate({"optimizer": "tests.tiny_family.TinyFamily"}, "a test")
    with pytest.raises(ConfigError, match=r"optimizer\.target is .*tests/\S+py' is of no package that is installed"):
        allow_code(config, trust=True, ask=None)


def test_a_file_of_a_class_that_cannot_be_read_is_of_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "huge.py").write_bytes(b"#" * (imported_code.LARGEST_SOURCE + 1))
    monkeypatch.setattr(imported_code, "_AT_START", (str(tmp_path),))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^scheduler_target: '.*huge\.py' is larger"):
        imported_code.read_class("huge.Slow", "scheduler_target")

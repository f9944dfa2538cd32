"""Which files a user's file imports is found without running it, however the import is written."""

from __future__ import annotations

import ast
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from modules import ROOT
from modules.config import ConfigError
from modules.config.imported_code import LARGEST_SOURCE, is_users, read_with_imports

HERE = "import sys; sys.path.append('.')\n"


def found(folder: Path, files: dict[str, str]) -> list[str]:
    """What the file "family" imports, if these are all."""
    for name, content in files.items():
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    imported = read_with_imports(folder / "family.py")[1:]
    return sorted(each.path.relative_to(folder).as_posix() for each in imported)


@pytest.mark.parametrize(
    "code",
    [
        "import nets",
        "def f():\n    from nets import net",
        "try:\n    import nets as other, os\nexcept ImportError: ...",
        "import importlib; importlib.import_module('nets')",
        "__import__('nets')",
        "import importlib.util as util\nutil.spec_from_file_location('x', __file__[:-9] + 'x.py')\nimport nets",
        "from pathlib import Path\nSource = Path(__file__).parent / 'nets.py'\nrunpy.run_path(str(Source))",
    ],
)
def test_imports_of_a_neighbour(tmp_path: Path, code: str) -> None:
    assert found(tmp_path, {"family": code, "nets": "import torch, json, modules.config", "other": ""}) == ["nets.py"]


@pytest.mark.parametrize(
    "code",
    [
        "sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))",
        "sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'lib'))",
        "sys.path[:0] = [f'{Path(__file__).parent.parent}/lib']",
        "sys.path += ['FOLDER', 5]",
        "ABOVE = os.path.dirname(os.path.dirname(__file__))\nLIB = ABOVE + '/lib'\nsys.path.extend([LIB])",
        "from sys import path\npath.append(Path(__file__).parent.joinpath('../lib').as_posix())",
        "site.addsitedir(os.path.realpath('FOLDER'))",
        "sys.path = [*sys.path]\nsys.path.append(os.path.join(os.getcwd(), 'lib'))",
    ],
)
def test_folders_that_it_adds_to_the_path(tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "nets.py").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "family.py").write_text(code.replace("FOLDER", str(tmp_path / "lib")) + "\nimport nets")
    assert [each.path for each in read_with_imports(Path("mine/family.py"))[1:]] == [tmp_path / "lib" / "nets.py"]


def test_packages_and_relative_imports(tmp_path: Path) -> None:
    files = {
        "family": f"{HERE}import a.b.c\nfrom bare import leaf",
        "a/__init__": "from . import side",
        "a/side": "",
        "a/b/__init__": "",
        "a/b/c": "from ..side import x\nfrom ... import nothing\nfrom .deep import y\nimport family",
        "a/b/deep": "from ..late import z",
        "a/late": "",
        "a/unused": "",
        "bare/leaf": "import torch\nimport a",
    }
    used = ["a/__init__.py", "a/b/__init__.py", "a/b/c.py", "a/b/deep.py", "a/late.py", "a/side.py", "bare/leaf.py"]
    assert found(tmp_path, files) == used


@pytest.mark.parametrize(
    "code",
    [
        "import importlib\nimportlib.import_module(f'pack.parts.{name}')",
        "__import__('pack.' + 'parts.' + name)",
        "import_module('pack.%s' % name)",
        "import_module('pack.{}'.format(name))",
        "import pkgutil\nfor each in pkgutil.iter_modules([os.path.dirname(__file__) + '/pack']): ...",
        "sys.modules['other'] = import_module('pack')\nimport other.parts.one",
        "from pack import parts\nsys.modules[name] = parts",
        "import pack.finding",
    ],
)
def test_a_package_of_which_it_imports_what_it_finds(tmp_path: Path, code: str) -> None:
    finding = "" if "finding" not in code else "import importlib\ndef get(name): return importlib.import_module(name)"
    files = {"pack/__init__": "", "pack/parts/__init__": "", "pack/parts/one": "", "pack/finding": finding, "other": ""}
    parts = {"pack/parts/__init__.py", "pack/parts/one.py"}
    assert parts <= set(found(tmp_path, {"family": f"{HERE}{code}", **files})) <= {f"{each}.py" for each in files}


def test_links_in_circles(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    for name in ("one", "two"):
        (tmp_path / "pack" / name).symlink_to(".")
    files = {"family": f"{HERE}import pack", "pack/__init__": "__import__(name)"}
    assert found(tmp_path, files)[0] == "pack/__init__.py"


@pytest.mark.parametrize(
    "code",
    [
        "torch.hub.load(os.path.dirname(__file__) + '/repository', 'net', source='local')",
        "from torch.hub import load\nload(model='net', source='local', repo_or_dir='FOLDER/repository')",
    ],
)
def test_a_folder_of_torch_hub(tmp_path: Path, code: str) -> None:
    files = {"repository/hubconf": "from nets import net", "repository/nets": ""}
    family = {"family": code.replace("FOLDER", str(tmp_path))}
    assert found(tmp_path, {**family, **files}) == ["repository/hubconf.py", "repository/nets.py"]


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "deep.py").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pack").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "nets.py").write_text("from . import deep")
    (tmp_path / "link.py").symlink_to(tmp_path / "mine" / "family.py")
    (tmp_path / "mine" / "family.py").write_text(f"{HERE}import pack.nets")
    imported = read_with_imports(tmp_path / "link.py")[1:]
    assert [each.path for each in imported] == [tmp_path / "mine" / "pack" / name for name in ("nets.py", "deep.py")]


def test_compiled_files_count_and_go_before_others(tmp_path: Path) -> None:
    (tmp_path / f"nets{EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF")
    (tmp_path / "kept.pyc").write_bytes(b"x")
    (tmp_path / "nets.py").touch()
    assert found(tmp_path, {"family": "import nets, kept"}) == ["kept.pyc", f"nets{EXTENSION_SUFFIXES[0]}"]


@pytest.mark.parametrize(
    "code",
    ["def f(:", "\0", "(" * 5000, "x = " + "-" * 50_000 + "1", "import sys\nsys.path.append('\\0')\nimport a\xa0"],
)
def test_what_cannot_be_parsed_imports_nothing(tmp_path: Path, code: str) -> None:
    assert found(tmp_path, {"family": code}) == []


def test_too_much_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("#" * LARGEST_SOURCE)
    with pytest.raises(ConfigError, match="imports more than 400 files or 4 MiB of Python"):
        found(tmp_path, {"family": "import nets"})
    for code in (
        "\n".join(f"import m{number}" for number in range(20_000)),
        "import sys\n" + "".join(f"sys.path.append('/{number}')\n" for number in range(200)),
    ):
        with pytest.raises(ConfigError, match="imports more than 10000 names or from more than 100 folders"):
            found(tmp_path, {"family": code})
    (tmp_path / "nets.py").unlink()
    (tmp_path / "nets.py").mkdir()
    assert found(tmp_path, {"family": "import nets"}) == []


def test_the_environment_is_not_asked_about(tmp_path: Path) -> None:
    ours, tests = (str(ROOT / name) for name in ("modules/config/names.py", "tests/points.py"))
    home = str(tmp_path)
    assert [is_users(each, home, []) for each in (pytest.__file__, ast.__file__, ours)] == [False] * 3
    assert [is_users(each, home, []) for each in (tests, f"{home}/a/b.py", "/elsewhere/x.py")] == [True, True, False]
    assert is_users("/elsewhere/x.py", home, ["/elsewhere"])
    cache = str(Path("~/.cache/torch/hub/x").expanduser())
    assert not is_users(f"{cache}/hubconf.py", home, [cache])
    assert is_users(f"{cache}/hubconf.py", cache, [cache]), "the user's file itself is there"


@pytest.mark.parametrize(
    "code",
    [
        "runpy.run_path(str(Path(__file__).parent.parent / 'shared' / 'helper.py'))",
        "runpy.run_path('FOLDER/shared/helper.py')",
        "spec_from_file_location('helper', os.path.join(os.path.dirname(__file__), '..', 'shared', 'helper.py'))",
        "runpy.run_path(os.path.expanduser('~/helper.py'))",
    ],
)
def test_files_of_other_folders_that_are_run_by_their_path(
    tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those in the family's own folder were asked about."""
    monkeypatch.setenv("HOME", str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "helper.py").touch()
    (tmp_path / "mine").mkdir()
    family = tmp_path / "mine" / "family.py"
    family.write_text(code.replace("FOLDER", str(tmp_path)))
    assert [each.path.resolve() for each in read_with_imports(family)[1:]] == [tmp_path / "shared" / "helper.py"]

"""A user's file imports only what was allowed with it, also where no import statement shows what that is."""

from __future__ import annotations

import importlib.util
import multiprocessing
import py_compile
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from modules.config import ConfigError, trusted_code
from modules.config.imported_code import read_with_imports
from modules.families._family_file import load_python_file

HERE = "import sys, os; sys.path.insert(0, os.path.dirname(__file__))\n"
BAD = "import pathlib; pathlib.Path(__file__ + '.ran').touch()\n"


@pytest.fixture(autouse=True)
def nothing_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(trusted_code.VARIABLE, "")
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(folder: Path, code: str, *, allow: bool = True) -> dict[str, object]:
    """The names of a file that was allowed with what it is seen to import."""
    (folder / "family.py").write_text(code)
    if allow:
        trusted_code.trust_code(read_with_imports(folder / "family.py"))
    return vars(load_python_file(folder / "family.py"))


def test_what_was_allowed_runs(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("from .nets import a")
    (tmp_path / "pack" / "nets.py").write_text("a = 3\n")
    assert load(tmp_path, f"{HERE}import colorsys\nfrom pack import a")["a"] == 3


def test_the_same_file_in_another_folder_with_another_helper(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder, helper in ((mine, "a = 1\n"), (theirs, BAD)):
        folder.mkdir()
        (folder / "nets.py").write_text(helper)
    load(mine, f"{HERE}import nets")
    with pytest.raises(trusted_code.CodeNotTrusted, match=r"theirs/nets\.py"):
        load(theirs, f"{HERE}import nets", allow=False)
    assert not list(theirs.glob("*.ran"))


@pytest.mark.parametrize(
    "code",
    [
        "name = 'nets'\n__import__(name)",
        "import importlib\nimportlib.import_module(''.join(['ne', 'ts']))",
        "try:\n    exec('import nets')\nexcept ImportError: ...",
        "import runpy\nrunpy.run_path(__file__.replace('family', 'nets'))",
        "import importlib.util as util\nspec = util.spec_from_file_location('x', __file__.replace('family', 'nets'))\n"
        "spec.loader.exec_module(util.module_from_spec(spec))",
        "import pathlib\nfile = pathlib.Path(__file__.replace('family', 'nets'))\n"
        "exec(compile(file.read_text(), str(file), 'exec'))",
    ],
)
def test_an_import_that_nothing_shows_is_refused(tmp_path: Path, code: str) -> None:
    (tmp_path / "nets.py").write_text(BAD)
    with pytest.raises(trusted_code.CodeNotTrusted, match=r"it imports \S+nets\.py', which nobody.*if False"):
        load(tmp_path, HERE + code)
    assert not list(tmp_path.glob("*.ran"))
    load(tmp_path, f"{HERE}{code}\nif False:\n    import nets\n")
    assert list(tmp_path.glob("*.ran")), "once it is shown, it is asked about, and runs"


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_bytecode_of_other_source_is_refused(tmp_path: Path, mode: py_compile.PycInvalidationMode) -> None:
    """Python believes the time and size that are in it, or nothing but its flag."""
    nets, bad = tmp_path / "nets.py", tmp_path / "bad.py"
    bad.write_text(BAD)
    kept = Path(importlib.util.cache_from_source(str(nets)))
    py_compile.compile(str(bad), str(kept), invalidation_mode=mode)
    header = bytearray(kept.read_bytes())
    nets.write_text("a = 1".ljust(len(BAD)))
    if mode is py_compile.PycInvalidationMode.TIMESTAMP:
        header[8:12] = int(nets.stat().st_mtime).to_bytes(4, "little")
        kept.write_bytes(bytes(header))
    if mode is py_compile.PycInvalidationMode.CHECKED_HASH:
        header[8:16] = importlib.util.source_hash(nets.read_bytes())
        kept.write_bytes(bytes(header))
    with pytest.raises(trusted_code.CodeNotTrusted, match=r"__pycache__ is not what is in this file"):
        load(tmp_path, f"{HERE}import nets")
    assert not list(tmp_path.glob("*.ran"))


def test_bytecode_that_names_another_file_as_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD.replace("__file__", repr(str(tmp_path / "bad"))))
    py_compile.compile(str(tmp_path / "bad.py"), str(tmp_path / "kept.pyc"), dfile="<frozen os>")
    with pytest.raises(trusted_code.CodeNotTrusted, match=r"kept\.pyc"):
        load(
            tmp_path,
            "import types; from importlib.machinery import SourcelessFileLoader\n"
            "kept = SourcelessFileLoader('kept', __file__.replace('family.py', 'kept.pyc'))\n"
            "kept.exec_module(types.ModuleType('kept'))",
        )
    assert not list(tmp_path.glob("*.ran"))


def test_a_package_of_the_environment_is_not_replaced_by_a_file_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "this_is_not_installed.py").write_text(BAD)
    load(tmp_path, HERE)
    with pytest.raises(trusted_code.CodeNotTrusted):
        importlib.import_module("this_is_not_installed")  # as a library does later
    (tmp_path / "kept.pyc").write_bytes(b"x")
    with pytest.raises(trusted_code.CodeNotTrusted, match=r"kept\.pyc"):
        importlib.import_module("kept")
    assert not list(tmp_path.glob("*.ran"))


def test_a_helper_that_changes_between_the_question_and_the_import(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("a = 1\n")
    change = f"import pathlib\npathlib.Path({str(tmp_path / 'nets.py')!r}).write_text({BAD!r})\n"
    with pytest.raises(trusted_code.CodeNotTrusted, match="If it has changed meanwhile"):
        load(tmp_path, f"{HERE}{change}import nets")
    assert not list(tmp_path.glob("*.ran"))


def test_import_hooks_that_change_what_they_compile(tmp_path: Path) -> None:
    """Such as those of typeguard and jaxtyping."""
    (tmp_path / "nets.py").write_text("a = 1\n")
    hook = """
import importlib.machinery as machinery
class Loader(machinery.SourceFileLoader):
    def source_to_code(self, data, path, **options):
        return super().source_to_code(data + b"b = 2", path, **options)
class Finder:
    def find_spec(self, name, path, target=None):
        spec = machinery.PathFinder.find_spec(name, path, target) if name == "nets" else None
        if spec:
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec
sys.meta_path.insert(0, Finder())
import nets
sys.meta_path.pop(0)
"""
    assert vars(load(tmp_path, HERE + hook)["nets"])["b"] == 2


ELSEWHERE = "place = __file__.replace('family.py', '../elsewhere')\n"


@pytest.mark.parametrize(
    "code",
    [
        "import pack\npack.__path__.append(place)\nimport pack.bad",
        "import pack\npack.__path__ = [place]\nfrom pack import bad",
        "import wsgiref\nwsgiref.__path__.insert(0, place)\nimport wsgiref.bad",
        "import wsgiref\nwsgiref.__path__[:] = [place]\nimport importlib\nimportlib.import_module('.bad', 'wsgiref')",
        "import pydoc_data.topics\npydoc_data.__path__.append(place)\nimport pydoc_data.inner.bad",
        "import bare.leaf\nbare.__path__ = [place]\nimport bare.bad",
        "import types\nsys.modules['made'] = made = types.ModuleType('made')\nmade.__path__ = [place]\nimport made.bad",
        "__path__ = [place]\nimport tandem_family_family.bad",
        "import changing.bad",
        "import pack\npack.__path__.append(place)\nimport pack.kept",
        "import site\nsite.addsitedir(place)",
        "import site\nsite.addpackage(place, 'x.pth', None)",
        "import site as other\nother.addsitedir(place, set())",
    ],
)
def test_code_of_other_folders_under_the_name_of_a_package(tmp_path: Path, code: str) -> None:
    for file, content in {
        "home/pack/__init__.py": "",
        "home/bare/leaf.py": "",
        "home/changing/__init__.py": "import os\n__path__.append(os.path.abspath(f'{__path__[0]}/../../elsewhere'))\n",
        "elsewhere/bad.py": BAD,
        "elsewhere/inner/bad.py": BAD,
        "elsewhere/kept.pyc": "none",
        "elsewhere/x.pth": f"import pathlib; pathlib.Path({str(tmp_path / 'elsewhere' / 'x.ran')!r}).touch()\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    with pytest.raises(trusted_code.CodeNotTrusted, match=r"elsewhere/.*, which nobody has allowed"):
        load(tmp_path / "home", HERE + ELSEWHERE + code)
    assert not list(tmp_path.glob("elsewhere/**/*.ran"))
    shown = f"if False:\n    site.addsitedir({str(tmp_path / 'elsewhere')!r})\n    import bad, inner.bad, kept\n"
    with suppress(ConfigError):  # kept.pyc is none
        load(tmp_path / "home", f"{HERE}{ELSEWHERE}{code}\n{shown}")
    assert list(tmp_path.glob("elsewhere/**/*.ran")) or "kept" in code, "once it is shown, it is asked about, and runs"


def test_weights_may_be_named_like_a_list_of_folders(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"3")
    assert (
        load(tmp_path, "import pathlib\na = pathlib.Path(__file__.replace('family.py', 'weights.pth')).read_text()")[
            "a"
        ]
        == "3"
    )


def test_an_archive_is_allowed_as_a_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "nets.zip", "w") as archive:
        archive.writestr("inside/nets.py", "a = 3\n")
    here = "import os, sys\nsys.path.append(os.path.join(os.path.dirname(__file__), 'nets.zip', 'inside'))\n"
    with pytest.raises(trusted_code.CodeNotTrusted, match=r"which imports \S+nets\.zip\), which runs only after"):
        load(tmp_path, f"{here}import nets", allow=False)
    assert vars(load(tmp_path, f"{here}import nets")["nets"])["a"] == 3
    with zipfile.ZipFile(tmp_path / "nets.zip", "a") as archive:
        archive.writestr("inside/other.py", "a = 4\n")
    del sys.modules["nets"]
    with pytest.raises(trusted_code.CodeNotTrusted, match=r"nets\.zip/inside/nets\.py', which nobody has allowed"):
        importlib.import_module("nets")


@pytest.mark.slow
def test_a_folder_of_torch_hub(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "hubconf.py").write_text("from hub_nets import net\n")
    (tmp_path / "repository" / "hub_nets.py").write_text("def net(): return 3\n")
    where = "import torch, os\nplace = os.path.join(os.path.dirname(__file__), 'repository')\n"
    assert load(tmp_path, f"{where}a = torch.hub.load(place, 'net', source='local')")["a"] == 3


def test_a_package_that_finds_and_renames_its_modules(tmp_path: Path) -> None:
    (tmp_path / "pack" / "parts").mkdir(parents=True)
    (tmp_path / "pack" / "parts" / "__init__.py").touch()
    (tmp_path / "pack" / "parts" / "one.py").write_text("a = 3\n")
    (tmp_path / "pack" / "__init__.py").write_text(
        "import importlib, pkgutil, sys\n"
        "for each in pkgutil.iter_modules([f'{__path__[0]}/parts']):\n"
        "    sys.modules[f'pack.{each.name}'] = importlib.import_module(f'pack.parts.{each.name}')\n"
    )
    assert load(tmp_path, f"{HERE}from pack.one import a")["a"] == 3


def _import_hidden(family: Path) -> None:
    load_python_file(family)
    with pytest.raises(trusted_code.CodeNotTrusted):
        importlib.import_module("hidden")


@pytest.mark.slow
def test_in_a_spawned_process_the_environment_is_that_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with all of the first one's sys.path."""
    monkeypatch.setenv("TANDEM_IMPORT_PATH", "")  # is taken away afterwards
    monkeypatch.delenv("TANDEM_IMPORT_PATH")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "hidden.py").write_text(BAD)
    load(tmp_path, "import os, sys\nsys.path.append(os.path.join(os.path.dirname(__file__), 'lib'))\n")
    child = multiprocessing.get_context("spawn").Process(target=_import_hidden, args=(tmp_path / "family.py",))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert not list(tmp_path.glob("lib/*.ran"))


def test_other_faults_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=r"nets\.py, line 1: ZeroDivisionError"):
        load(tmp_path, f"{HERE}import nets")

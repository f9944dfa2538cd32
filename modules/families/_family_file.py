"""Running a Python file that a config names as its family, once somebody has allowed it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from modules.config import ConfigError
from modules.config.code_errors import describe_code_error, report_exits
from modules.config.imported_code import read_with_imports
from modules.config.trusted_code import CodeNotTrusted, require_trusted
from modules.families._import_guard import import_guard

_CODE = "__code_that_ran__"


def load_python_file(path: Path) -> ModuleType:
    """The module that the file is. Unchanged, it runs once in a process. Raises ConfigError, with the line, if it may
    not or cannot run."""
    files = read_with_imports(path)
    require_trusted(files)
    code = files[0].content
    name, file = f"tandem_family_{path.stem}", str(path.resolve())
    former = sys.modules.get(name)
    if former is not None and former.__file__ == file and vars(former).get(_CODE) == code:
        return former
    module = ModuleType(name)
    module.__file__ = file
    vars(module)[_CODE] = code
    sys.modules[name] = module  # dataclasses and pickle look up a class's module there
    report_exits()
    import_guard.watch(path)
    try:
        # the bytes that were checked, not what the file may hold by now
        exec(compile(code, file, "exec"), vars(module))
    except CodeNotTrusted:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:  # a user's file can raise anything
        del sys.modules[name]
        raise ConfigError(
            f"family: {str(path)!r} cannot be loaded: {describe_code_error(error)}.", _advice(path, error)
        ) from error
    return module


class LoadedFile:
    """A file that this process has loaded; another process that unpickles this loads it, too."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], LoadedFile], tuple[str]]:
        return _load_again, (self.path,)


def _load_again(path: str) -> LoadedFile:
    load_python_file(Path(path))
    return LoadedFile(path)


def _advice(path: Path, error: BaseException) -> str:
    if isinstance(error, ImportError) and str(error.name).partition(".")[0] == "modules":
        return (
            "The file was written for another Tandem, whose names were different: what was `spec`, a PipelineSpec, is "
            "now a record of facts (docs/architecture.md)."
        )
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    missing = error.name.partition(".")[0]
    if (path.parent / f"{missing}.py").exists() or (path.parent / missing).is_dir():
        return f"{missing} is next to it: begin with `import sys; sys.path.append({str(path.resolve().parent)!r})`."
    return f"Install {missing} for the Python that runs Tandem."

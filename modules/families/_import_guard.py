"""Refuses what a user's file would import without anybody having allowed it, as it is about to run.

Most of it was asked about before, because modules/config/imported_code.py has found it. What no syntax tree shows, such
as a name that is put together while the file runs, is refused here, and so are cached bytecode that is not of the
allowed source, and files that another folder would slip in under the name of a package. It is no fence around code that
was allowed: that can read a text and run it.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Sequence
from importlib.abc import FileLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from modules.config import ConfigError
from modules.config.imported_code import (
    file_on_disk,
    is_below,
    is_of_environment,
    is_users,
    pass_on_environment,
    read_code,
)
from modules.config.trusted_code import CodeNotTrusted, allows_any, is_trusted


class _ImportGuard:
    """Both a finder, which sees compiled files as well, and an audit hook, which sees those that are loaded by path."""

    def __init__(self) -> None:
        self._folders: list[str] = []  # of the families that this process has loaded

    def watch(self, family: Path) -> None:
        """Guard the imports of this file from now on."""
        pass_on_environment()
        if not self._folders:
            sys.meta_path.insert(sys.meta_path.index(PathFinder), self)
            sys.addaudithook(self._audit)
        if (folder := str(family.resolve().parent)) not in self._folders:
            self._folders.append(folder)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What PathFinder finds, unless it is not allowed."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.has_location and (file := spec.origin):
            is_elsewhere = path is not None and not allows_any() and _is_elsewhere(name, file)
            if is_elsewhere or self._guards(file):
                _require_allowed(file)
        return spec

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and (file := str(arguments[0])).endswith(".pth"):
            runs_lines = sys._getframe(1).f_code is site.addpackage.__code__
            if runs_lines and not allows_any() and not is_of_environment(file):
                _require_allowed(file)
        if event != "exec" or not isinstance(arguments[0], CodeType):
            return
        code = arguments[0]
        caller = sys._getframe(1).f_code.co_filename
        is_import = caller.startswith("<frozen ")
        loader = sys._getframe(2).f_locals.get("self") if is_import else None
        # compiled code says itself what its file is
        file = str(loader.path) if isinstance(loader, FileLoader) else code.co_filename
        if file.startswith("<") or not self._guards(file):
            return
        if not is_import and not self._guards(caller):
            return  # such as torch.compile, which runs what it has generated
        content = _require_allowed(file)
        # the loaders of typeguard and others change what they compile
        if type(loader) is SourceFileLoader and code != compile(content, loader.path, "exec", dont_inherit=True):
            raise CodeNotTrusted(
                f"family: what Python has kept of {file!r} in __pycache__ is not what is in this file",
                "Remove that folder",
            )

    def _guards(self, file: str) -> bool:
        added = [each for each in sys.path if isinstance(each, str)]
        return not allows_any() and any(is_users(file, folder, added) for folder in self._folders)


import_guard = _ImportGuard()


def _is_elsewhere(name: str, origin: str) -> bool:
    """Whether a module is outside the environment and its package: found by a `__path__` that code has changed."""
    if is_of_environment(origin):
        return False
    package = name.partition(".")[0]
    if file := getattr(sys.modules.get(package), "__file__", None):
        own: Sequence[str] = [os.path.dirname(file)]
    else:  # a namespace
        spec = PathFinder.find_spec(package)
        own = spec.submodule_search_locations or () if spec is not None else ()
    return not any(is_below(os.path.abspath(origin), each) for each in own)


def _require_allowed(name: str) -> bytes:
    """The content of a file of code; raises CodeNotTrusted unless it is allowed."""
    try:
        file = read_code(file_on_disk(name))
    except ConfigError as error:
        raise CodeNotTrusted(error.message) from None
    if not is_trusted([file]):
        raise CodeNotTrusted(
            f"family: it imports {name!r}, which nobody has allowed to run",
            "If it has changed meanwhile, start again. If not, no import statement shows it: write one into your "
            "file, if need be below `if False:`, and add the folder to sys.path as a text or from __file__; then you "
            "are asked about it",
        )
    return file.content

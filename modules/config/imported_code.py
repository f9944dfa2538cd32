"""A user's Python file and all files that it imports from outside the environment, found without running anything.

The environment is Python's library, installed packages, what PYTHONPATH names, and Tandem. Imports that no syntax tree
shows are refused while the file runs (modules/families/_import_guard.py).
"""

from __future__ import annotations

import ast
import hashlib
import os
import pkgutil
import site
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from glob import escape, glob
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from itertools import chain
from pathlib import Path
from typing import Final

from modules import ROOT
from modules.config.errors import ConfigError
from modules.files import FileFault, read_bytes

LARGEST_SOURCE: Final = 4 << 20  # bytes, of all files together
_LARGEST_LIBRARY: Final = 256 << 20  # bytes
MOST_FILES: Final = 400  # their hashes fit into an environment variable of Windows
_MOST_FOLDERS: Final = 100
_MOST_NAMES: Final = 10_000
# What sys.path was in the first process before a user's file added to it, for spawned ones, which begin with all of it.
# It only takes away: a folder of which it alone speaks is none of the environment.
_VARIABLE: Final = "TANDEM_IMPORT_PATH"
_NAMED: Final = os.environ[_VARIABLE].split(os.pathsep) if _VARIABLE in os.environ else None
_AT_START: Final = tuple(
    path for path in map(os.path.abspath, filter(None, sys.path)) if _NAMED is None or path in _NAMED
)
OUR_FOLDERS: Final = tuple(str(ROOT / name) for name in ("modules", "scripts", "app", "tandem"))
LIBRARIES: Final = (
    *dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
)
_CACHES: Final = (  # from which torch.hub and transformers run what a user's file names
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
    *(os.environ[name] for name in ("TORCH_HOME", "HF_HOME", "HF_MODULES_CACHE") if os.environ.get(name)),
)
_LOADERS: Final = (  # in Python's order
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)
_SAME_PLACE: Final = ("abspath", "realpath", "normpath", "resolve", "absolute", "str", "fspath", "as_posix")
_JOINING: Final = ("join", "joinpath", "Path", "PurePath", *_SAME_PLACE)


@dataclass(frozen=True)
class CodeFile:
    """A file of code, as it was read."""

    path: Path
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def is_source(self) -> bool:
        return self.path.suffix in (*SOURCE_SUFFIXES, ".pth")


@dataclass
class _Uses:
    names: list[tuple[str, str]] = field(default_factory=list)  # a folder, for a relative import, and a dotted name
    folders: list[str] = field(default_factory=list)  # that it adds to sys.path
    files: list[str] = field(default_factory=list)  # that it runs by their path
    is_dynamic: bool = False  # it imports what it finds: any module of its package


def pass_on_environment() -> None:
    """Let the processes that this one starts know what the environment is, whatever a user's file adds to sys.path."""
    os.environ[_VARIABLE] = os.pathsep.join(each for each in _AT_START if os.pathsep not in each)


def read_code(path: Path, setting: str = "family") -> CodeFile:
    """A file of code that a setting leads to; raises ConfigError."""
    try:
        return CodeFile(path, read_bytes(path, LARGEST_SOURCE if path.suffix in SOURCE_SUFFIXES else _LARGEST_LIBRARY))
    except FileNotFoundError:
        raise ConfigError(f"{setting}: there is no file {str(path.absolute())!r}.") from None
    except (OSError, FileFault) as error:
        reason = str(error) if isinstance(error, FileFault) else f"cannot be read: {error.strerror}"
        raise ConfigError(f"{setting}: {str(path)!r} {reason}.") from None


def read_with_imports(path: Path) -> tuple[CodeFile, ...]:
    """The file, and then all that it imports from outside the environment. Raises ConfigError."""
    home = path.resolve().parent
    on_path = [os.path.abspath(each) for each in sys.path if isinstance(each, str)]
    folders = list(dict.fromkeys([str(home), *(each for each in on_path if each not in LIBRARIES)]))
    found = {path.resolve(): read_code(path)}
    pending = list(found)
    finders: dict[str, FileFinder] = {}
    while pending:
        place = pending.pop()
        uses = _uses(place, found[place])
        added = [each for each in uses.folders if each not in folders]
        folders += added
        _check_limits(path, found, folders)
        if added:
            pending = list(found)  # a folder that one file adds counts for all of them
            continue
        archives = map(str, map(file_on_disk, uses.folders))
        run_by_path = (
            each for each in (*uses.files, *archives) if os.path.isfile(each) and not is_of_environment(each)
        )
        named = (each for each in _located(place, uses, folders, finders) if is_users(each, str(home), folders))
        for name in chain(run_by_path, named):
            if Path(name) not in found and len(found) <= MOST_FILES:
                found[Path(name)] = read_code(Path(name))
                pending.append(Path(name))
    return tuple(found.values())


def read_class(path: str, setting: str) -> tuple[CodeFile, ...]:
    """The file of the class "package.module.Class" that a setting names, and then those of its packages, wherever one
    of the folders of sys.path has them. Raises ConfigError if there is none, or one that is not the environment's: what
    that imports, and its bytecode, nobody would have been asked about."""
    module = path.rpartition(".")[0]
    folders = list(dict.fromkeys(os.path.abspath(each) for each in sys.path if isinstance(each, str)))
    found = list(_find(module, folders, {}))
    if not found:
        advice = "Install its package in the environment of Tandem, or add its folder to PYTHONPATH"
        raise ConfigError(f"{setting} is {path!r}, and there is no file of the module {module}", advice)
    if outside := [each for each in found if not is_of_environment(each)]:
        raise ConfigError(
            f"{setting} is {path!r}, and {outside[0]!r} is of no package that is installed or that PYTHONPATH names",
            "Install it, or build what you need in the family's own file",
        )
    return tuple(read_code(Path(each), setting) for each in reversed(found))


def file_on_disk(name: str) -> Path:
    """The file of this name, or the archive in which it is, as Python imports from a zip on sys.path."""
    path = Path(name)
    return next((each for each in (path, *path.parents) if each.is_file()), path)


def is_users(file: str, home: str, added: Collection[str]) -> bool:
    """Whether code is not the environment's: it is in `home`, the folder of the user's file, in a folder that is
    `added` to sys.path, or in Tandem's without being a part of it. This user's caches, such as torch.hub's, are the
    environment's."""
    file = os.path.abspath(file)
    of_user = [home, str(ROOT), *(each for each in added if each not in _AT_START)]
    others = [each for each in (*_AT_START, *_CACHES) if each != str(ROOT) and not is_below(home, each)]
    return any(is_below(file, each) for each in of_user) and not any(
        is_below(file, each) for each in (*LIBRARIES, *OUR_FOLDERS, *others)
    )


def is_of_environment(file: str) -> bool:
    """Whether it is in a folder of the environment, wherever the user's file is."""
    others = [each for each in (*_AT_START, *_CACHES) if each != str(ROOT)]
    return any(is_below(os.path.abspath(file), each) for each in (*LIBRARIES, *OUR_FOLDERS, *others))


def is_below(file: str, folder: str) -> bool:
    """Whether an absolute path is that of the folder or of something in it."""
    folder = os.path.normcase(os.path.abspath(folder))
    return f"{os.path.normcase(file)}{os.sep}".startswith(folder if folder.endswith(os.sep) else f"{folder}{os.sep}")


def _check_limits(path: Path, found: Mapping[Path, CodeFile], folders: Collection[str]) -> None:
    size = sum(len(each.content) for each in found.values() if each.is_source)
    if len(found) > MOST_FILES or size > LARGEST_SOURCE:
        what = f"more than {MOST_FILES} files or {LARGEST_SOURCE >> 20} MiB of Python"
    elif len(folders) > _MOST_FOLDERS or sum(len(_uses(*each).names) for each in found.items()) > _MOST_NAMES:
        what = f"more than {_MOST_NAMES} names or from more than {_MOST_FOLDERS} folders"
    else:
        return
    advice = "Install what it needs as a package, in the environment of Tandem."
    raise ConfigError(f"family: {str(path)!r} imports {what}.", advice)


def _located(place: Path, uses: _Uses, folders: Collection[str], finders: dict[str, FileFinder]) -> Iterator[str]:
    for base, name in uses.names:
        yield from _find(name, [base] if base else folders, finders)
    packages = [each for each in place.absolute().parents if (each / "__init__.py").is_file()]
    if uses.is_dynamic and packages:
        yield from _find("*", [str(packages[-1])], finders)


def _find(name: str, folders: Collection[str], finders: dict[str, FileFinder]) -> Iterator[str]:
    """The files of a module and of the packages that it is in, wherever one of these folders has them; those of all
    modules of a package for "package.*"."""
    head, _, rest = name.partition(".")
    for folder in folders:
        if head == "*":
            is_circle = any(os.path.realpath(each) == os.path.realpath(folder) for each in Path(folder).parents)
            for each in pkgutil.iter_modules([] if is_circle or is_of_environment(folder) else [folder]):
                yield from _find(f"{each.name}.*", [folder], finders)
            continue
        spec = finders.setdefault(folder, FileFinder(folder, *_LOADERS)).find_spec(head)
        if spec is None:
            continue
        if spec.has_location and spec.origin:
            yield os.path.abspath(spec.origin)
        if rest and spec.submodule_search_locations:
            yield from _find(rest, spec.submodule_search_locations, finders)


def _uses(place: Path, file: CodeFile) -> _Uses:
    """What its syntax tree says that it imports; nothing of a compiled file, about which nobody can tell."""
    return _read_uses(place, file.content) if file.is_source else _Uses()


@lru_cache(maxsize=MOST_FILES)
def _read_uses(file: Path, content: bytes) -> _Uses:
    uses = _Uses()
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return uses  # it cannot run either
    known = {"__file__": str(file)}
    gives_names = False
    for node in nodes:  # those of the file's top level come first
        match node:
            case ast.Import(names=names):
                uses.names += [("", each.name) for each in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                prefix = f"{'.' * level}{module or ''}{'.' * bool(module)}"
                uses.names += [_named(f"{prefix}{each.name}", file) for each in names]
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if (path := _path(value, known)) is not None:
                known[name] = path
            case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(value=ast.Name(id="sys"), attr="modules"))]):
                gives_names = uses.is_dynamic = True
            case ast.Assign(targets=[ast.Attribute(attr="path") | ast.Subscript(value=ast.Attribute(attr="path"))]):
                uses.folders += _paths([node.value], known)
            case ast.AugAssign(target=ast.Attribute(attr="path"), value=value):
                uses.folders += _paths([value], known)
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="path") | ast.Name(id="path" | "site"))
                | ast.Name(id="addsitedir")
            ):
                uses.folders += _paths(node.args, known)
                uses.files += [each for folder in _paths(node.args, known) for each in glob(f"{escape(folder)}/*.pth")]
            case ast.Call(func=ast.Attribute(attr="load") | ast.Name(id="load"), keywords=keywords) if any(
                each.arg == "source" and isinstance(each.value, ast.Constant) and each.value.value == "local"
                for each in keywords
            ):  # torch.hub.load
                places = [*node.args[:1], *(each.value for each in keywords if each.arg == "repo_or_dir")]
                uses.folders += _paths(places, known)
                uses.files += [os.path.join(each, "hubconf.py") for each in _paths(places, known)]
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[first, *_]):
                if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
                    uses.names.append(_named(str(first.value), file))
                elif name in ("import_module", "__import__"):
                    uses.is_dynamic = True
                    uses.names += [
                        ("", f"{each}.*") for each in [_beginning(first).rpartition(".")[0]] if each.strip(".")
                    ]
                elif name in ("iter_modules", "walk_packages"):
                    uses.is_dynamic = True
                    uses.names += [(each, "*") for each in _paths([first], known)]
                elif name in ("spec_from_file_location", "run_path", "SourceFileLoader"):
                    uses.files += _paths(node.args, known)
    if gives_names:  # other names for modules, below which nobody sees what they are
        uses.names += [(base, f"{name}.*") for base, name in uses.names]
    uses.names, uses.folders = list(dict.fromkeys(uses.names)), list(dict.fromkeys(uses.folders))
    return uses


def _beginning(node: ast.expr) -> str:
    """The text with which the text that an expression makes begins, as far as it is written there."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[first, *_]) | ast.BinOp(left=first):
            return _beginning(first)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return text.partition("{")[0]
    return ""


def _named(name: str, importer: Path) -> tuple[str, str]:
    """The folder in which a relative import begins, if it is one, and the rest of its name."""
    level = len(name) - len(name.lstrip("."))
    return str(importer.absolute().parents[min(level, len(importer.absolute().parents)) - 1]) * bool(level), name[
        level:
    ]


def _paths(nodes: Collection[ast.expr], known: Mapping[str, str]) -> list[str]:
    """The absolute paths that expressions mean, also those in lists; others are left out."""
    each = [item for node in nodes for item in (node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node])]
    return [os.path.abspath(path) for node in each if "\0" not in (path := _path(node, known) or "\0")]


def _path(node: ast.expr | None, known: Mapping[str, str]) -> str | None:
    """The path that an expression means, if it is written in one of the usual ways; None for any other."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return known.get(name)
        case ast.Attribute(value=inner, attr="parent"):
            return _above(_path(inner, known), 1)
        case ast.Subscript(value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(number))):
            return _above(_path(inner, known), number + 1)
        case ast.BinOp(left=left, op=ast.Div() | ast.Add() as operation, right=right):
            parts = [_path(left, known), _path(right, known)]
            return _joined(parts, os.sep if isinstance(operation, ast.Div) else "")
        case ast.JoinedStr(values=values):
            inner_values = [each.value if isinstance(each, ast.FormattedValue) else each for each in values]
            return _joined([_path(each, known) for each in inner_values], "")
        case ast.Call(func=ast.Attribute(attr="getcwd" | "cwd")):
            return os.getcwd()
        case ast.Call(func=ast.Attribute(value=ast.Name(id="Path"), attr="home")):
            return os.path.expanduser("~")
        case ast.Call(func=ast.Attribute(attr="expanduser"), args=[given]) if inside := _path(given, known):
            return os.path.expanduser(inside)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name) as function, args=args):
            receiver = _path(function.value, known) if isinstance(function, ast.Attribute) else None
            parts = [*([] if receiver is None else [receiver]), *(_path(each, known) for each in args)]
            if name == "dirname":
                return _above(parts[0] if parts else None, 1)
            return _joined(parts, os.sep) if name in _JOINING else None
    return None


def _above(path: str | None, levels: int) -> str | None:
    if path is None:
        return None
    return str(Path(os.path.abspath(path)).joinpath(*[os.pardir] * levels))


def _joined(parts: Collection[str | None], separator: str) -> str | None:
    known = [each for each in parts if each is not None]
    if not known or len(known) < len(parts):
        return None
    return "".join(known) if not separator else os.path.join(*known)

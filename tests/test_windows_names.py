"""No code of Tandem uses, on Windows, what Python's library does not have there."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fake_windows.windows_names import MISSING_MODULES, MISSING_NAMES
from tests.runs import ROOT

NAMES = re.compile("|".join(rf"\b{name}\b" for name in sorted(MISSING_MODULES.union(*MISSING_NAMES.values()))))
FILES = sorted(file for folder in ("modules", "app", "scripts", "tandem") for file in (ROOT / folder).rglob("*.py"))


def missing_names(source: str) -> list[str]:
    """The uses, as "line: name", that code run on Windows would reach and fail at."""
    if not NAMES.search(source):
        return []  # most files; reading their syntax takes seconds
    return [f"{node.lineno}: {name}" for node, name in _uses(ast.parse(source).body)]


def _uses(block: list[ast.stmt]) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for statement in block:
        if isinstance(statement, ast.If):
            on_windows = _value(statement.test)
            yield from _in(statement.test)
            yield from [] if on_windows is False else _uses(statement.body)
            yield from [] if on_windows is True else _uses(statement.orelse)
            leaves = statement.body if on_windows is True else statement.orelse if on_windows is False else []
            if leaves and isinstance(leaves[-1], (ast.Return, ast.Raise, ast.Continue)):
                return
        else:
            yield from _in(statement)


def _in(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """The uses in a node and in all below it."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.attr in MISSING_NAMES.get(node.value.id, ()):
            yield node, f"{node.value.id}.{node.attr}"
    elif isinstance(node, ast.Import):
        yield from ((node, alias.name) for alias in node.names if alias.name in MISSING_MODULES)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        missing = MISSING_NAMES.get(node.module or "", frozenset())
        yield from [(node, str(node.module))] if node.module in MISSING_MODULES else []
        yield from ((node, f"{node.module}.{alias.name}") for alias in node.names if alias.name in missing)
    elif isinstance(node, ast.Try) and any("ImportError" in ast.unparse(each.type or node) for each in node.handlers):
        node = ast.Module([*node.handlers, *node.orelse, *node.finalbody], [])  # type: ignore[list-item]
    elif isinstance(node, ast.IfExp):
        on_windows = _value(node.test)
        branches = [] if on_windows is False else [node.body], [] if on_windows is True else [node.orelse]
        for branch in (*branches[0], *branches[1], node.test):
            yield from _in(branch)
        return
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield from _uses(value)
        else:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _in(child)


def _value(test: ast.expr) -> bool | None:
    """What a condition is on Windows; None if that depends on something else."""
    if isinstance(test, ast.BoolOp):
        values = [_value(each) for each in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in values:
            return decisive
        return None if None in values else not decisive
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value = _value(test.operand)
        return None if value is None else not value
    if isinstance(test, ast.Call) and ast.unparse(test.func) == "hasattr":
        module, name = (ast.unparse(each).strip("'\"") for each in test.args)
        return name not in MISSING_NAMES[module] if module in MISSING_NAMES else None
    text = ast.unparse(test)
    if text.startswith(("sys.platform", "os.name")):
        return bool(eval(text, {"sys": SimpleNamespace(platform="win32"), "os": SimpleNamespace(name="nt")}))
    return None


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import signal\nsignal.signal(signal.SIGKILL, f)", ["2: signal.SIGKILL"]),
        ("import fcntl", ["1: fcntl"]),
        ("from os import fork, path", ["1: os.fork"]),
        (
            "def f():\n    try:\n        import fcntl\n    except ImportError:\n        return\n    fcntl.flock(1, 2)",
            [],
        ),
        ("def f():\n    if sys.platform == 'win32':\n        return\n    os.killpg(1, 2)", []),
        ("def f():\n    if sys.platform == 'linux':\n        return\n    os.killpg(1, 2)", ["4: os.killpg"]),
        ("if sys.platform == 'win32':\n    pass\nelse:\n    os.killpg(1, signal.SIGKILL)", []),
        ("if sys.platform != 'darwin':\n    os.killpg(1, 2)", ["2: os.killpg"]),
        ("if sys.platform == 'linux' and ready:\n    os.setsid()", []),
        ("if sys.platform == 'win32' or ready:\n    pass\nelse:\n    os.setsid()", []),
        ("n = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1", []),
        ("n = time.clock_gettime(1) if ready else 1", ["1: time.clock_gettime"]),
        ("@d\nclass A:\n    def f(self):\n        with x:\n            return socket.AF_UNIX", ["5: socket.AF_UNIX"]),
        ("getattr(signal, 'SIGUSR1', 0)", []),
    ],
)
def test_the_search_itself(source: str, found: list[str]) -> None:
    assert missing_names(source) == found


@pytest.mark.slow
def test_no_name_that_windows_lacks_is_used_there() -> None:
    found = [f"{file.relative_to(ROOT)}:{use}" for file in FILES for use in missing_names(file.read_text("utf-8"))]
    assert found == []


def test_what_is_called_missing_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list holds names that exist on Linux: one that is misspelt would never be found."""
    if sys.platform != "linux":
        pytest.skip("the list is compared with Linux")
    elsewhere = {"kqueue", "lchmod", "setns", "unshare", "pidfd_open", "SIGCLD", "SIGSTKFLT"}  # BSD, or newer Pythons
    for module, names in MISSING_NAMES.items():
        present = __import__(module)
        assert {name for name in names if not hasattr(present, name)} <= elsewhere, module


def test_files_are_found() -> None:
    assert Path(ROOT / "modules/run/supervise/signals.py") in FILES

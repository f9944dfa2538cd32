"""What `./scripts/test.sh --fast` runs: the first quick tests of each file, whatever the machine does meanwhile."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from modules import ROOT
from tests.conftest import FAST_TESTS, NOT_FAST, is_not_fast
from tests.scripts.pytest_program import run_pytest

MANY = f"""import pytest
@pytest.mark.slow
def test_slow(): assert False
@pytest.mark.parametrize("case", range({FAST_TESTS}))
def test_first(case): assert case < {FAST_TESTS - 1}
def test_second(): pass
"""
NOT_IMPORTED = "import pytest\npytestmark = [\n    pytest.mark.long,\n    pytest.mark.slow,\n]\nraise ValueError\n"


@pytest.mark.slow
def test_what_is_left_out(tmp_path: Path) -> None:
    for name, text in {"a_many": MANY, "b_few": "def test_only(): pass\n", "c_slow": NOT_IMPORTED}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    options = ("-p", "tests.conftest", "--fast", "-v", "-W", "ignore::pytest.PytestUnknownMarkWarning")
    ended = run_pytest(tmp_path, *options)
    assert f"{FAST_TESTS + 1} passed" in ended.stdout, ended.stdout[-3000:] + ended.stderr[-2000:]
    assert "test_second PASSED" in ended.stdout, "its first case comes before the second one of another test"


@pytest.mark.slow
def test_every_package_has_a_quick_test() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    covered = {file.parent for file in files if not is_not_fast(file) and _has_quick_test(file)}
    assert {file.parent for file in files} == covered


def _has_quick_test(file: Path) -> bool:
    functions = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.FunctionDef)]
    tests = [function for function in functions if function.name.startswith("test_")]
    return any(NOT_FAST.isdisjoint(_marks(test)) for test in tests)


def _marks(test: ast.FunctionDef) -> set[str]:
    """The last words of its decorators: "slow" of `@pytest.mark.slow`."""
    words = [each.func if isinstance(each, ast.Call) else each for each in test.decorator_list]
    return {word.attr for word in words if isinstance(word, ast.Attribute)}

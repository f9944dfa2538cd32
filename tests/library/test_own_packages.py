"""`import tandem` in projects that have packages named as Tandem's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import modules.library
import tandem
from tests.runs import ROOT, environment

# tandem is imported below `__main__`, so the new processes come to Tandem's `modules` before `import tandem`
TWO_RANKS = """
import sys


def report(rank, world_size):
    from tandem import reduce_mean
    print(f"{reduce_mean(float(rank))} of {world_size} in {sys.modules['modules'].__file__}", flush=True)


if __name__ == "__main__":
    from tandem import launch_distributed
    launch_distributed(report, world_size=2, backend="gloo")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of somebody with packages of these names."""
    for name in ("app", "modules", "scripts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"name = 'my own {name}'")
    (tmp_path / "modules" / "net.py").touch()
    return tmp_path


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_new_processes_find_tandem_as_well(project: Path) -> None:
    (project / "mine.py").write_text(TWO_RANKS)
    done = run(project, "mine.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"0.5 of 2 in {modules.__file__}"] * 2


def test_it_works_if_tandem_comes_first_and_what_needs_no_torch_imports_none(project: Path) -> None:
    program = """
import sys, tandem, app, scripts
print(tandem.TrainConfig().batch_size, tandem.LaunchPlan.__name__, tandem.gpu_info.__name__, app.name, scripts.name)
print([name for name in ("torch", "numpy", "pydantic") if name in sys.modules])
"""
    done = run(project, "-c", program)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["1 LaunchPlan gpu_info my own app my own scripts", "['pydantic']"]


def test_the_import_itself_is_light(project: Path) -> None:
    done = run(project, "-c", "import sys, tandem; print({'torch', 'pydantic', 'yaml'} & set(sys.modules))")
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("name", ["modules", "modules.net"])
def test_a_module_of_the_project_that_is_imported_first_is_in_the_way(project: Path, name: str) -> None:
    done = run(project, "-c", f"import {name}, tandem")
    assert done.stderr.splitlines()[-1] == (
        "ImportError: Tandem has a package `modules`, and this program has imported another one from "
        f"{project / 'modules' / '__init__.py'}: put `import tandem` before that import, and if the program needs "
        "both, rename its own."
    )


def test_a_module_of_the_project_after_tandem_is_explained(project: Path) -> None:
    done = run(project, "-c", "import tandem, modules.net")
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: modules.net is in {project / 'modules'}, but `modules` is Tandem's package in this "
        "program: rename that folder."
    )
    assert (
        "ModuleNotFoundError: No module named 'modules.nett'"
        in run(project, "-c", "import tandem, modules.nett").stderr
    )


def test_every_name_is_there_and_no_other() -> None:
    assert [name for name in tandem.__all__ if not hasattr(tandem, name)] == []
    assert tandem.__version__ == modules.__version__
    assert set(modules.library.__all__) < set(tandem.__all__)
    with pytest.raises(AttributeError, match="module 'tandem' has no attribute 'Tariner'"):
        tandem.Tariner  # type: ignore[attr-defined]  # noqa: B018

"""Tandem's top-level packages in a program whose own project has folders of the same names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]
# It may stand before everything else in sys.path: all that is found there is `modules`.
_PATH_ENTRY: Final = _ROOT / "tandem" / "path_entry"


def import_own(package: str) -> None:
    """Import Tandem's `package`, whatever else has that name in sys.path. Raises ImportError if that is imported."""
    ours = _ROOT / package / "__init__.py"
    stand_in = _PATH_ENTRY / f"{package}.py"
    found = _place(find_spec(package))
    if found == ours:
        import_module(package)
        return
    if found != stand_in:
        if package in sys.modules:
            raise ImportError(
                f"Tandem has a package `{package}`, and this program has imported another one from {found}: put "
                "`import tandem` before that import, and if the program needs both, rename its own."
            )
        if stand_in.exists():  # for the processes that Python's multiprocessing starts: they take over sys.path
            sys.path.insert(0, str(_PATH_ENTRY))
    spec = spec_from_file_location(package, ours)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[package] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[package])


def _place(spec: ModuleSpec | None) -> Path | None:
    """The file of a module or package, or the folder of one without `__init__.py`."""
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    return next((Path(place).resolve() for place in places if place), None)


class ExplainMissing:
    """For sys.meta_path, as its last: says why what is in a program's own `modules` is not found."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Nothing, or ModuleNotFoundError if sys.path has another `modules` with this module."""
        if name.startswith("modules."):
            for entry in sys.path:
                place = Path(entry, *name.split("."))
                if place.is_dir() or place.with_suffix(".py").is_file():
                    raise ModuleNotFoundError(
                        f"{name} is in {place.parent.resolve()}, but `modules` is Tandem's package in this program: "
                        "rename that folder.",
                        name=name,
                    )
        return None

"""torch's compiler, torch._dynamo, is imported by what compiles, no longer by every optimizer and DDP.

They import it in their first call, 800 modules in a second, to say what a compilation has to leave out. Before anything
else has imported it nothing is compiled, so there is nothing to say.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Final

import torch

COMPILER: Final = "torch._dynamo"
DDP_MODE: Final = "ddp_optimizer"  # the default of torch._dynamo.config.optimize_ddp
# The torch whose functions these are, by module and name. Any other one imports its compiler as ever.
_KNOWN_TORCH: Final = "2.13."
_CALLERS: Final = frozenset(
    {
        ("torch._compile", "inner"),  # what _disable_dynamo makes of a function
        ("torch.optim.optimizer", "_use_grad"),  # around `step`
        ("torch.nn.parallel.distributed", "__init__"),
    }
)


def defer_compiler() -> None:
    """From now on the compiler is imported when anything but those functions asks for it."""
    if torch.__version__.startswith(_KNOWN_TORCH) and COMPILER not in sys.modules:
        sys.meta_path.insert(0, _Deferral())


class _Deferral(MetaPathFinder, Loader):
    """Answers the known functions; the first import by anybody else ends it, and is the normal one."""

    def __init__(self) -> None:
        self._left_alone: list[FunctionType] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != COMPILER:
            return None
        if _caller() in _CALLERS:
            return ModuleSpec(fullname, self)
        sys.meta_path.remove(self)
        for function in self._left_alone:  # the next call asks the compiler
            vars(function).pop("__dynamo_disable", None)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        answers: dict[str, object] = {
            "disable": self._disable,
            "graph_break": lambda: None,
            "utils": _Answer(f"{COMPILER}.utils", {"get_optimize_ddp_mode": lambda: DDP_MODE}, is_imported=True),
        }
        return _Answer(spec.name, answers)

    def exec_module(self, module: ModuleType) -> None:
        """From here on its attributes are asked for by the importer, and no longer by the import system."""
        module.is_imported = True  # type: ignore[attr-defined]

    def _disable(self, function: FunctionType, *_: object, **__: object) -> FunctionType:
        """torch keeps the answer as the attribute `__dynamo_disable` of `function`."""
        self._left_alone.append(function)
        return function


class _Answer(ModuleType):
    """The module that a known function gets: for one attribute, so that nobody else comes upon it."""

    def __init__(self, name: str, answers: dict[str, object], *, is_imported: bool = False) -> None:
        super().__init__(name)
        self._answers = answers
        self.is_imported = is_imported

    def __getattr__(self, name: str) -> object:
        if not self.is_imported:
            raise AttributeError(name)
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
            vars(torch).pop("_dynamo", None)
        return self._answers[name] if name in self._answers else getattr(import_module(self.__name__), name)


def _caller() -> tuple[str, str]:
    """Module and name of the function that imports, beyond the import system's and torch's own `__getattr__`."""
    frame = sys._getframe(2)
    while True:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        through = module.startswith(("importlib", "_frozen_importlib")) or (module, name) == ("torch", "__getattr__")
        if not through or frame.f_back is None:
            return module, name
        frame = frame.f_back

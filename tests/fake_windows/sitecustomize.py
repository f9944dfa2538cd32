"""Lets Tandem's own code see Python as it is on Windows, in any process that has this folder in PYTHONPATH.

The names that Windows lacks are missing, sys.platform and os.name are Windows', processes start by spawn, and no
TCPStore with libuv can be made, as with PyTorch's builds for Windows. Python's library and packages still see this
system.
"""

from __future__ import annotations

import builtins
import enum
import errno
import multiprocessing
import os
import signal
import sys
from types import ModuleType
from typing import Any

from windows_names import MISSING_MODULES, MISSING_NAMES, SIGNALS  # type: ignore[import-not-found]  # of this folder

OWN = tuple(os.path.join(folder, "") for folder in os.environ["TANDEM_FAKE_WINDOWS"].split(os.pathsep))


class View(ModuleType):
    """A module without some names and with others changed; setting a name sets it in the module."""

    def __init__(self, module: ModuleType, missing: frozenset[str], changed: dict[str, object]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _missing=missing, **changed)

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._module, name, value)


def _msvcrt() -> ModuleType:
    """The locks of Windows' msvcrt, made of this system's."""
    import fcntl

    module = ModuleType("msvcrt")

    def locking(handle: int, mode: int, count: int) -> None:
        try:
            fcntl.lockf(handle, fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB, count)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, "Permission denied") from error

    module.__dict__.update(locking=locking, LK_UNLCK=0, LK_NBLCK=2)
    return module


CHANGED: dict[str, dict[str, object]] = {
    "sys": {"platform": "win32"},
    "os": {"name": "nt"},
    "signal": {"Signals": enum.IntEnum("Signals", {name: getattr(signal, name) for name in SIGNALS})},
    "subprocess": {"CREATE_NEW_PROCESS_GROUP": 0},
    "time": {},
    "socket": {},
    "select": {},
}
views: dict[str, ModuleType] = {}
_import = builtins.__import__


def _import_as_on_windows(
    name: str,
    globals: Any = None,
    locals: Any = None,
    fromlist: Any = (),
    level: int = 0,
) -> Any:
    if level == 0 and str((globals or {}).get("__file__", "")).startswith(OWN):
        if name in MISSING_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "msvcrt":
            return views.setdefault(name, _msvcrt())
        if name == "torch._C._distributed_c10d":
            _without_libuv(_import(name, globals, locals, ("TCPStore",), level))
        if name in CHANGED:
            module = sys.modules.get(name) or _import(name)
            return views.setdefault(name, View(module, MISSING_NAMES.get(name, frozenset()), CHANGED[name]))
    return _import(name, globals, locals, fromlist, level)


def _without_libuv(module: ModuleType) -> None:
    if "_with_libuv" in module.__dict__:
        return
    module.__dict__["_with_libuv"] = store = module.TCPStore

    class TCPStore(store):  # type: ignore[misc, valid-type]
        def __init__(self, *args: object, use_libuv: bool = True, **kwargs: object) -> None:
            if use_libuv:
                raise RuntimeError("use_libuv was requested but PyTorch was built without libuv support")
            super().__init__(*args, use_libuv=False, **kwargs)

    module.TCPStore = TCPStore  # type: ignore[attr-defined]


builtins.__import__ = _import_as_on_windows
multiprocessing.set_start_method("spawn", force=True)

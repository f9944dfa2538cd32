"""Reads a pickle of plain data and byte arrays without unpickling: nothing that it names is imported or called.

Data sets such as CIFAR-10 come as pickles, and unpickling runs whatever code a file contains. Here its operations are
interpreted by a machine that knows numbers, texts, lists, dictionaries, and the three calls that numpy's arrays of
bytes are written with; anything else is refused.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modules.files import FileFault

MAX_OPERATIONS: Final = 5_000_000
_RECONSTRUCT: Final = frozenset({"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"})
_GLOBALS: Final = frozenset({*_RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode"})
_VALUES: Final = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"}
    | {"SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"}
    | {"BINUNICODE8"}
)
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_IGNORED: Final = frozenset({"PROTO", "FRAME"})
_MARK: Final = object()


@dataclass(frozen=True)
class _Global:
    """A name that the pickle asks for; it stays a name."""

    name: str


@dataclass
class _DType:
    name: str


@dataclass
class _Array:
    """A numpy array; its contents come with the operation BUILD."""

    values: NDArray[np.uint8] | None = None


def read_pickled_data(data: bytes) -> object:
    """The data in a pickle: None, numbers, text, bytes, tuples, lists, dictionaries, and arrays of uint8.

    Raises FileFault if it holds anything else, or is damaged. Texts of Python 2 become str, by Latin-1.
    """
    machine = _Machine()
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
            if number >= MAX_OPERATIONS:
                raise FileFault("is a pickle of too many operations")
            if operation.name == "STOP":
                return _finished(machine.stack.pop())
            machine.run(operation.name, argument)
    except FileFault:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise FileFault(f"is a damaged pickle ({error})") from error
    raise FileFault("is a pickle without an end")


class _Machine:
    def __init__(self) -> None:
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}

    def run(self, name: str, argument: object) -> None:
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name not in _IGNORED:
            handler: Callable[[object], None] | None = getattr(self, f"_{name.lower()}", None)
            if handler is None:
                raise FileFault(f"is a pickle with the operation {name}, which plain data does not need")
            handler(argument)

    # Collections

    def _mark(self, argument: object) -> None:
        self.stack.append(_MARK)

    def _empty_dict(self, argument: object) -> None:
        self.stack.append({})

    def _empty_list(self, argument: object) -> None:
        self.stack.append([])

    def _empty_tuple(self, argument: object) -> None:
        self.stack.append(())

    def _tuple(self, argument: object) -> None:
        self.stack.append(tuple(self._since_mark()))

    def _tuple1(self, argument: object) -> None:
        self._take_tuple(1)

    def _tuple2(self, argument: object) -> None:
        self._take_tuple(2)

    def _tuple3(self, argument: object) -> None:
        self._take_tuple(3)

    def _list(self, argument: object) -> None:
        self.stack.append(self._since_mark())

    def _dict(self, argument: object) -> None:
        self.stack.append(_pairs(self._since_mark()))

    def _append(self, argument: object) -> None:
        value = self.stack.pop()
        self._top_list().append(value)

    def _appends(self, argument: object) -> None:
        values = self._since_mark()
        self._top_list().extend(values)

    def _setitem(self, argument: object) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._top_dict().update(_pairs([key, value]))

    def _setitems(self, argument: object) -> None:
        values = self._since_mark()
        self._top_dict().update(_pairs(values))

    # Memory of what was read before

    def _put(self, argument: object) -> None:
        self.memo[_integer(argument)] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, argument: object) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _get(self, argument: object) -> None:
        self.stack.append(self.memo[_integer(argument)])

    _binget = _long_binget = _get

    def _pop(self, argument: object) -> None:
        self.stack.pop()

    # Arrays

    def _global(self, argument: object) -> None:
        if argument not in _GLOBALS:
            raise FileFault(f"is a pickle that would run {str(argument).replace(' ', '.')!r}")
        self.stack.append(_Global(str(argument)))

    def _stack_global(self, argument: object) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._global(f"{module} {name}")

    def _reduce(self, argument: object) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise FileFault("is a pickle that calls something that is not a function")
        self.stack.append(_called(function.name, arguments))

    def _build(self, argument: object) -> None:
        state = self.stack.pop()
        built = self.stack[-1]
        if isinstance(built, _Array) and isinstance(state, tuple):
            built.values = _array_of(*state)
        elif not isinstance(built, _DType):  # its state is the byte order, which single bytes have not
            raise FileFault("is a pickle that changes an object")

    def _since_mark(self) -> list[object]:
        marks = [place for place, value in enumerate(self.stack) if value is _MARK]
        if not marks:
            raise FileFault("is a damaged pickle")
        position = marks[-1]
        values = self.stack[position + 1 :]
        del self.stack[position:]
        return values

    def _take_tuple(self, count: int) -> None:
        values = tuple(self.stack[-count:])
        if len(values) < count:
            raise FileFault("is a damaged pickle")
        del self.stack[-count:]
        self.stack.append(values)

    def _top_list(self) -> list[object]:
        top = self.stack[-1]
        if not isinstance(top, list):
            raise FileFault("is a damaged pickle")
        return top

    def _top_dict(self) -> dict[object, object]:
        top = self.stack[-1]
        if not isinstance(top, dict):
            raise FileFault("is a damaged pickle")
        return top


def _called(name: str, arguments: tuple[object, ...]) -> object:
    if name in _RECONSTRUCT and arguments[:1] == (_Global("numpy ndarray"),):
        return _Array()
    if name == "numpy dtype" and isinstance(arguments[0], (str, bytes)):
        kind = arguments[0] if isinstance(arguments[0], str) else arguments[0].decode("latin-1")
        return _DType(kind)
    if name == "_codecs encode" and isinstance(arguments[0], str) and arguments[1:] == ("latin1",):
        return arguments[0].encode("latin-1")
    raise FileFault(f"is a pickle with an unusual call of {name.replace(' ', '.')!r}")


def _array_of(version: object, shape: object, dtype: object, is_fortran: object, data: object) -> NDArray[np.uint8]:
    if not isinstance(dtype, _DType) or dtype.name.lstrip("|") != "u1":
        raise FileFault("has an array of something else than bytes")
    raw = data.encode("latin-1") if isinstance(data, str) else data
    if not isinstance(raw, bytes) or not isinstance(shape, tuple):
        raise FileFault("has a damaged array")
    return np.frombuffer(raw, np.uint8).reshape(tuple(map(_integer, shape)), order="F" if is_fortran else "C")


def _finished(value: object) -> object:
    """The value with numpy arrays in place of their stand-ins, in the dictionary that it usually is."""
    if isinstance(value, dict):
        return {key: _finished(each) for key, each in value.items()}
    if isinstance(value, _Array):
        if value.values is None:
            raise FileFault("has an array without contents")
        return value.values
    if isinstance(value, (_Global, _DType)):
        raise FileFault("is a pickle of something else than plain data")
    return value


def _pairs(values: list[object]) -> dict[object, object]:
    if len(values) % 2:
        raise FileFault("is a damaged pickle")
    return dict(zip(values[::2], values[1::2], strict=True))


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise FileFault("is a damaged pickle")
    return value

"""Reads a pickle of plain data and byte arrays without unpickling: nothing that it names is imported or called.

Data sets such as CIFAR-10 come as pickles, and unpickling runs whatever code a file contains. Here its operations are
interpreted by a machine that knows numbers, texts, lists, dictionaries, and the three calls that numpy's arrays of
bytes are written with; anything else is refused. What it makes is a tree, in time and memory proportional to the file:
a few hundred bytes of lists in lists that are used twice would otherwise stand for more values than any machine holds.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modules.files import FileFault, printable

MAX_OPERATIONS: Final = 1_000_000  # the real ones need up to 300,000
_MAX_MARKS: Final = 100  # open at once
_MAX_NAME: Final = 8  # of a numpy type
_MAX_KEY: Final = 1000  # characters
_RECONSTRUCT: Final = frozenset({"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"})
_GLOBALS: Final = frozenset({*_RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode"})
_VALUES: Final = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"}
    | {"SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"}
    | {"BINUNICODE8"}
)
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_IGNORED: Final = frozenset({"PROTO", "FRAME"})


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

    Raises FileFault if it holds anything else, or is damaged. Texts of Python 2 become str, by Latin-1. Keys are text
    or bytes; arrays are found only as the values of the dictionary that the whole usually is.
    """
    machine = _Machine(len(data))
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
        raise FileFault(f"is a damaged pickle ({printable(error, 200)})") from error
    raise FileFault("is a pickle without an end")


class _Machine:
    def __init__(self, encodable: int) -> None:
        self.stack: list[object] = []  # above the last mark
        self.below: list[list[object]] = []  # the stacks below each mark
        self.memo: dict[int, object] = {}
        self.encodable = encodable  # characters that may still be encoded; all together are no longer than the file

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
        if len(self.below) >= _MAX_MARKS:
            raise FileFault("is a pickle that is nested too deeply")
        self.below.append(self.stack)
        self.stack = []

    def _empty_dict(self, argument: object) -> None:
        self.stack.append({})

    def _empty_list(self, argument: object) -> None:
        self.stack.append([])

    def _empty_tuple(self, argument: object) -> None:
        self.stack.append(())

    def _tuple(self, argument: object) -> None:
        values = self._since_mark()
        self.stack.append(tuple(values))

    def _tuple1(self, argument: object) -> None:
        self._take_tuple(1)

    def _tuple2(self, argument: object) -> None:
        self._take_tuple(2)

    def _tuple3(self, argument: object) -> None:
        self._take_tuple(3)

    def _list(self, argument: object) -> None:
        values = self._since_mark()
        self.stack.append(values)

    def _dict(self, argument: object) -> None:
        values = self._since_mark()
        self.stack.append(_pairs(values))

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
        self.memo[_place(argument)] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, argument: object) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _get(self, argument: object) -> None:
        value = self.memo[_place(argument)]
        if isinstance(value, (list, tuple, dict)):
            raise FileFault("is a pickle that uses a list, tuple or dictionary twice")
        self.stack.append(value)

    _binget = _long_binget = _get

    def _pop(self, argument: object) -> None:
        self.stack.pop()

    # Arrays

    def _global(self, argument: object) -> None:
        if argument not in _GLOBALS:
            raise FileFault(f"is a pickle that would run {printable(argument, 100).replace(' ', '.')!r}")
        self.stack.append(_Global(str(argument)))

    def _stack_global(self, argument: object) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise FileFault("is a damaged pickle")
        self._global(f"{module} {name}")

    def _reduce(self, argument: object) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise FileFault("is a pickle that calls something that is not a function")
        self.stack.append(self._called(function.name, arguments))

    def _build(self, argument: object) -> None:
        state = self.stack.pop()
        built = self.stack[-1]
        if isinstance(built, _Array) and isinstance(state, tuple):
            built.values = self._array_of(*state)
        elif not isinstance(built, _DType):  # its state is the byte order, which single bytes have not
            raise FileFault("is a pickle that changes an object")

    def _since_mark(self) -> list[object]:
        if not self.below:
            raise FileFault("is a damaged pickle")
        values, self.stack = self.stack, self.below.pop()
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

    def _called(self, name: str, arguments: tuple[object, ...]) -> object:
        first = arguments[0]
        if name in _RECONSTRUCT and first == _Global("numpy ndarray"):
            return _Array()
        if name == "numpy dtype" and isinstance(first, (str, bytes)) and len(first) <= _MAX_NAME:
            return _DType(first if isinstance(first, str) else first.decode("latin-1"))
        if name == "_codecs encode" and isinstance(first, str) and arguments[1:] == ("latin1",):
            return self._encoded(first)
        raise FileFault(f"is a pickle with an unusual call of {name.replace(' ', '.')!r}")

    def _array_of(
        self, version: object, shape: object, dtype: object, is_fortran: object, data: object
    ) -> NDArray[np.uint8]:
        if not isinstance(dtype, _DType) or dtype.name.lstrip("|") != "u1":
            raise FileFault("has an array of something else than bytes")
        raw = self._encoded(data) if isinstance(data, str) else data
        if not isinstance(raw, bytes) or not isinstance(shape, tuple):
            raise FileFault("has a damaged array")
        return np.frombuffer(raw, np.uint8).reshape(tuple(map(_integer, shape)), order="F" if is_fortran else "C")

    def _encoded(self, text: str) -> bytes:
        self.encodable -= len(text)
        if self.encodable < 0:  # the same text again and again
            raise FileFault("is a pickle that stands for more than it holds")
        return text.encode("latin-1")


def _finished(value: object) -> object:
    """The value with numpy arrays in place of their stand-ins, in the dictionary that it usually is."""
    return {key: _array(each) for key, each in value.items()} if isinstance(value, dict) else _array(value)


def _array(value: object) -> object:
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
    keys = values[::2]
    # others may have slow hashes or be made to have equal ones, and long texts are compared again and again
    if not all(isinstance(key, (str, bytes)) and len(key) <= _MAX_KEY for key in keys):
        raise FileFault("is a pickle with keys that are not short texts")
    return dict(zip(keys, values[1::2], strict=True))


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise FileFault("is a damaged pickle")
    return value


def _place(value: object) -> int:
    """In the memo; of numbers beyond this, many could be made to have the same hash."""
    place = _integer(value)
    if not 0 <= place < MAX_OPERATIONS:
        raise FileFault("is a damaged pickle")
    return place

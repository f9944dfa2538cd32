"""Tables with images: Arrow files, as Hugging Face's `datasets` saves them to disk, and Parquet, as its hub has them.

An image is bytes in a column, or `bytes` in a column of structures. pyarrow reads them. An Arrow file holds the bytes
as they are, so that afterwards they are read from their place without it.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, Final

from modules.files.opening import FileFault, open_file
from modules.files.shard_contents import MAX_MEMBERS, Contents
from modules.files.shard_paths import PARQUET

_IMAGE_NAMES: Final = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo", "image_bytes", "bytes")
_SUFFIXES: Final = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"BM": ".bmp", b"II*\0": ".tiff"}
_HEAD: Final = 4  # bytes, the longest of these
_ROWS_AT_ONCE: Final = 256
_TEXTS_AT_ONCE: Final = 4096  # each batch has a copy of the dictionary
_MAX_TEXTS: Final = 512 << 20  # bytes
_MAX_GROUP: Final = 1 << 30  # bytes of images in a row group, which is read at once
_KEPT_GROUPS: Final = 3  # in memory, each up to _MAX_GROUP: threads that read image sizes are in several at once
_lock = threading.Lock()
_groups: OrderedDict[tuple[str, int, int], tuple[int, list[Any]]] = OrderedDict()


def read_table(path: str) -> Contents:
    """The images of a table, by the numbers of their rows. Raises OSError, or FileFault for one without images."""
    contents = Contents()
    with open_file(path) as opened, _faults(path):
        if path.lower().endswith(PARQUET):
            _list_parquet(opened, contents)
        else:
            _list_arrow(path, contents)
    return contents


def read_row(path: str, row: int) -> bytes:
    """The image in a row of a parquet file. Its row group is read, and kept for the next one.

    Raises OSError or FileFault.
    """
    with _lock, open_file(path) as opened:
        changed = os.fstat(opened.fileno()).st_mtime_ns
        for key, (first, arrays) in _groups.items():
            if key[:2] == (path, changed) and first <= row < first + sum(map(len, arrays)):
                _groups.move_to_end(key)
                return _value(arrays, row - first)
        with _faults(path):
            from pyarrow.parquet import ParquetFile

            file, first = ParquetFile(opened, pre_buffer=False), 0
            for group in range(file.metadata.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if row < first + count:
                    while len(_groups) >= _KEPT_GROUPS:
                        _groups.popitem(last=False)
                    arrays = list(_images_of_group(file, group))
                    _groups[path, changed, group] = first, arrays
                    return _value(arrays, row - first)
                first += count
    raise FileFault(f"has no row {row}")


def _after_fork() -> None:
    """A thread that the new process does not have may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _groups.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)


def table_rows(file: io.BufferedReader, suffix: str, wanted: set[str]) -> list[dict[str, object]]:
    """The rows of a table with the wanted columns that are no bytes, classes by their names; the first with all.

    Raises FileFault if they are too many or the table is damaged.
    """
    rows: list[dict[str, object]] = []
    size = 0  # of the texts as Python has them: a few bytes of a file can repeat one a million times

    def count(more: int) -> None:
        nonlocal size
        size += more
        if size > _MAX_TEXTS:
            raise FileFault(f"has more than {_MAX_TEXTS >> 20} MiB of texts")

    def plain(value: Any) -> object:
        if isinstance(value, ListScalar):
            count(8 * len(value.values or ()))
            return [plain(each) for each in value.values or ()]
        found = value.as_py()
        count(len(found) if isinstance(found, str) else 0)
        return found

    def listed(column: Any) -> list[object]:
        kind = column.type
        if types.is_dictionary(kind) and types.is_string(kind.value_type):
            count(compute.sum(compute.binary_length(column.dictionary).take(column.indices)).as_py() or 0)
            return column.dictionary_decode().to_pylist()  # type: ignore[no-any-return]
        return [plain(value) for value in column]

    with _faults(suffix):
        from pyarrow import ListScalar, compute, types

        schema, batches = _text_batches(file, suffix, wanted)
        classes = _class_names(schema)
        for batch in batches:
            _check_rows(len(rows) + batch.num_rows)
            columns = {name: listed(values) for name, values in zip(batch.schema.names, batch.columns, strict=True)}
            rows += ({name: values[row] for name, values in columns.items()} for row in range(batch.num_rows))
    for row in rows if classes else ():
        for column, names in classes.items():
            if isinstance(number := row.get(column), int) and 0 <= number < len(names):
                row[column] = names[number]
    return [{**dict.fromkeys(schema.names), **row} for row in rows[:1]] + rows[1:]  # a message names all columns


@contextmanager
def _faults(path: str) -> Iterator[None]:
    """Raises FileFault for what pyarrow raises, and if it is missing."""
    kind = "parquet" if path.lower().endswith(PARQUET) else "arrow"
    if find_spec("pyarrow") is None:
        raise FileFault("needs pyarrow: .venv/bin/python -m pip install pyarrow")
    from pyarrow import ArrowException

    try:
        yield
    except FileFault:
        raise
    except (ArrowException, OverflowError, ValueError, KeyError) as error:  # also a time that Python does not know
        raise FileFault(f"cannot be read as {kind}: {str(error)[:200]}") from None


def _list_parquet(opened: io.BufferedReader, contents: Contents) -> None:
    from pyarrow.parquet import ParquetFile

    file, row = ParquetFile(opened, pre_buffer=False), 0
    _check_rows(file.metadata.num_rows)
    _image_column(file.schema_arrow)
    for group in range(file.metadata.num_row_groups):
        for array in _images_of_group(file, group):
            for value in array:
                data = memoryview(value.as_buffer()) if value.is_valid else memoryview(b"")
                contents.add(_name(row, bytes(data[:_HEAD])), row, len(data))
                row += 1


def _images_of_group(file: Any, group: int) -> Iterator[Any]:
    """The images of a row group as arrays of bytes."""
    column, is_struct = _image_column(file.schema_arrow)
    chosen, size = f"{column}.bytes" if is_struct else column, 0
    for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=[chosen], use_threads=False):
        size += batch.nbytes
        if size > _MAX_GROUP:
            limit = f"{_MAX_GROUP >> 20} MiB"
            raise FileFault(f"has a row group of more than {limit} of images; write it anew with row_group_size=100")
        array = batch.column(0)
        array.validate(full=True)
        yield array.flatten()[0] if is_struct else array


def _value(arrays: Sequence[Any], row: int) -> bytes:
    for array in arrays:
        if row < len(array):
            return bytes(array[row].as_py() or b"")
        row -= len(array)
    raise FileFault("has fewer rows than it says")


def _list_arrow(path: str, contents: Contents) -> None:
    import numpy as np
    import pyarrow

    with pyarrow.memory_map(path) as mapped:
        whole = mapped.read_buffer()
        reader = _arrow_reader(whole)
        column, is_struct = _image_column(reader.schema)
        row = 0
        try:
            for batch in _batches(reader):
                batch.validate(full=True)
                array = batch.column(column)
                valid = array.is_valid().to_numpy(zero_copy_only=False)
                if is_struct:
                    array = array.field("bytes")
                    valid &= array.is_valid().to_numpy(zero_copy_only=False)
                _, offsets, data = array.buffers()
                width = np.int64 if pyarrow.types.is_large_binary(array.type) else np.int32
                starts = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
                is_empty = data is None or starts[-1] == starts[0]  # then the bytes are nowhere
                starts = starts * 0 if is_empty else starts + (data.address - whole.address)
                if len(array) and not 0 <= starts[0] <= starts[-1] <= whole.size:
                    raise FileFault("is compressed; save it anew without compression, as `datasets` does")
                sizes = np.diff(starts) * valid
                for start, size in zip(starts.tolist(), sizes.tolist(), strict=False):
                    contents.add(_name(row, bytes(memoryview(whole)[start : start + min(size, _HEAD)])), start, size)
                    row += 1
        except (pyarrow.ArrowException, OSError) as error:
            if not row:
                raise
            contents.refuse(b"", f"it is damaged or cut off after row {row - 1:,} ({str(error)[:200]})")


def _arrow_reader(source: Any) -> Any:
    from pyarrow import ipc

    head = bytes(memoryview(source)[:6])
    return ipc.open_file(source) if head == b"ARROW1" else ipc.open_stream(source)


def _batches(reader: Any) -> Iterator[Any]:
    count = getattr(reader, "num_record_batches", None)
    yield from reader if count is None else (reader.get_batch(number) for number in range(count))


def _text_batches(file: io.BufferedReader, suffix: str, wanted: set[str]) -> tuple[Any, Iterator[Any]]:
    from pyarrow import BufferReader, py_buffer
    from pyarrow.parquet import ParquetFile

    if suffix == PARQUET:
        table = ParquetFile(file, pre_buffer=False)
        _check_rows(table.metadata.num_rows)
        schema, columns = table.schema_arrow, _text_columns(table.schema_arrow, wanted)
        leaves = map(table.schema.column, range(len(table.schema)))
        texts = [
            each.path for each in leaves if each.physical_type == "BYTE_ARRAY" and each.path.split(".")[0] in columns
        ]
        # As dictionaries, or rows with the same text would each have it in memory before they can be counted.
        table = ParquetFile(file, pre_buffer=False, metadata=table.metadata, read_dictionary=texts)
        return schema, table.iter_batches(_TEXTS_AT_ONCE, columns=columns, use_threads=False)
    import mmap

    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = _arrow_reader(BufferReader(py_buffer(mapped)).read_buffer())
    return reader.schema, _until_damaged(reader, _text_columns(reader.schema, wanted))


def _until_damaged(reader: Any, columns: list[str]) -> Iterator[Any]:
    """The rows before what is damaged, as those whose images are listed."""
    from pyarrow import ArrowException

    with suppress(ArrowException, OSError):
        for batch in _batches(reader):
            chosen = batch.select(columns)
            chosen.validate(full=True)
            yield chosen


def _check_rows(count: int) -> None:
    if count > MAX_MEMBERS:  # those of its columns end the process if they are damaged (pyarrow 26)
        raise FileFault(f"has more than {MAX_MEMBERS:,} rows")


def _image_column(schema: Any) -> tuple[str, bool]:
    """The name of the column with the images, and whether it holds structures. Raises FileFault without one."""
    found = {each.name: _is_struct(each.type) for each in schema if _is_struct(each.type) or _is_bytes(each.type)}
    if not found:
        names = ", ".join(schema.names[:8])
        raise FileFault(f"has no column with the bytes of images; it has {names or 'none'}")
    name = next((each for each in _IMAGE_NAMES if each in found), next(iter(found)))
    return name, found[name]


def _is_struct(kind: Any) -> bool:
    from pyarrow import types

    return types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and _is_bytes(kind.field("bytes").type)


def _is_bytes(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _text_columns(schema: Any, wanted: set[str]) -> list[str]:
    return [each.name for each in schema if each.name in wanted and _is_text(each.type)]


def _is_text(kind: Any) -> bool:
    """Whether its values are texts, numbers of classes, or lists of them."""
    from pyarrow import types

    while hasattr(kind, "value_type"):  # of a list, or of values that are stored once
        kind = kind.value_type
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
    )


def _class_names(schema: Any) -> dict[str, list[str]]:
    """The names of the classes by column, which `datasets` writes beside the table."""
    import json

    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {
            column: [str(name) for name in each["names"]]
            for column, each in features.items()
            if isinstance(each, dict) and each.get("_type") == "ClassLabel" and isinstance(each.get("names"), list)
        }
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return {}


def _name(row: int, head: bytes) -> bytes:
    suffix = next((each for start, each in _SUFFIXES.items() if head.startswith(start)), ".jpg")
    return f"{row:07d}{suffix}".encode()

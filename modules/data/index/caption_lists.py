"""Files with the captions of many images: metadata.jsonl, .csv and .parquet, kohya's metadata.json, lists like
captions.txt, and the records of single images (NAME.json)."""

from __future__ import annotations

import csv
import io
import os
import posixpath
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from modules.config.sections.concept import IMAGE_SUFFIXES, LISTS_ELSEWHERE, METADATA_NAMES
from modules.data.index.problems import Problem
from modules.data.index.scan import IMAGE_FOLDERS
from modules.files import FileFault, decode_json, is_shard, open_regular, printable, read_bytes
from modules.files.encodings import SAMPLE, decode_unicode, find_encoding
from modules.files.shard_paths import is_archive
from modules.files.shards import shard_table
from modules.files.table_shards import table_rows
from modules.files.videos import VIDEO_SUFFIXES

Texts: TypeAlias = tuple[str, ...]
Record: TypeAlias = Mapping[str, object]

FILE_KEYS: Final = (
    *("file_name", "filename", "file", "image", "image_path", "path", "img", "image_name"),
    *("video", "video_path", "media_path", "image_id"),
)
TEXT_KEYS: Final = ("text", "caption", "prompt", "description", "tags")
NOT_USED: Final = "not used: it"
MORE_CELLS: Final = "more cells than the header"
NO_CLIPS: Final = "are not used: a video is one file with all of its captions. Cut it into a file for each clip"
LABEL_KEYS: Final = ("label", "class")
_SEPARATORS: Final = (",", ";", "\t", "|")
_MAX_BYTES: Final = 512 << 20  # a line of text for each of a million images
_MAX_FAULTS: Final = 20  # listed of one file
_TIMES: Final = (("start", "end"), ("start_time", "end_time"), ("start_frame", "end_frame"))  # of a clip in a video
_BEYOND: Final = "\0"  # the column of what is beyond the last one
_SUFFIXES: Final = IMAGE_SUFFIXES | VIDEO_SUFFIXES
_LINE_END: Final = re.compile("[\r\n]")


class Entries:
    """What such files say of the images of a concept: the captions by relative path. `name` is that of its folder."""

    def __init__(self, name: str = "") -> None:
        self.texts: dict[str, Texts] = {}
        self._folder = folded(name)
        self._alike: dict[str, str] | None = None

    def key(self, relative: str) -> str | None:
        """The entry of an image, which may be written without a suffix, as an absolute path of another machine, below
        its own folder again, without a folder images or the archive that it is in, or with other capitals or another
        Unicode form: macOS takes names apart (NFD)."""
        if relative in self.texts or not self.texts:
            return relative if self.texts else None
        if self._alike is None:
            self._alike = _alike(self.texts)
        path = folded(relative)
        stem = posixpath.splitext(path)[0]
        folder, name = posixpath.split(path)
        parts = (each for each in folder.split("/") if each not in IMAGE_FOLDERS and not is_archive(each))
        outside = posixpath.join(*parts, name)
        again = (f"{self._folder}/{path}", posixpath.join(folder, posixpath.basename(folder), name))
        wanted = (path, stem, *again, outside, f"//{name}", f"//{posixpath.basename(stem)}")
        return next((key for each in wanted if (key := self._alike.get(each))), None)


def read_entries(
    root: str, relative: str, keys: Sequence[str], column: str, problems: list[Problem]
) -> dict[str, Texts]:
    """The entries of one file; what is wrong with it is added to `problems`.

    `keys` are the names that the captions may have, `column` the one that the concept gives, or "".
    """
    path, folder = Path(root, relative), posixpath.dirname(relative)
    name = path.name.lower()
    is_table = is_shard(name)
    try:
        text, encoding = ("", "") if is_table else _read(path)
        if is_table:
            with open_regular(path) as file:
                records: Sequence[Record] = table_rows(file, path.suffix.lower(), {*FILE_KEYS, *keys, column})
            if path.name not in METADATA_NAMES:  # its rows are images
                names, folder = shard_table(str(path)), relative
                records = [{**row, FILE_KEYS[0]: os.fsdecode(each)} for each, row in zip(names, records, strict=False)]
        elif name.endswith((".csv", ".tsv")):
            records = _table(text)
            if name == "results.csv":  # Flickr30k's of Kaggle; those of other programs hold no captions
                records = [{"text": each["comment"], **each} for each in records if "comment" in each]
        elif name.endswith(".jsonl"):
            records = _json_lines(text, path, problems)
        elif name.endswith(".json"):
            records = _annotations(decode_json(text)) if name in LISTS_ELSEWHERE else _json_records(text)
        else:
            records = _list(text)
        if name in LISTS_ELSEWHERE:  # a path from the root counts by its last part
            records = [{**each, FILE_KEYS[0]: f"/{image}"} for each in records if (image := _named(each))]
    except (FileFault, csv.Error, OSError) as fault:
        what = f"it {fault}" if isinstance(fault, FileFault) else f"it cannot be read as {path.suffix[1:]}: {fault}"
        is_chosen = name in METADATA_NAMES  # otherwise nothing says that it is meant to hold captions
        problems.append(Problem(str(path), f"not used: {what}" if is_chosen else what))
        return {}
    if encoding:
        problems.append(Problem(str(path), f"it is not UTF-8; it was read as {encoding}"))
    return _entries(records, path, folder, (column,) if column else keys, problems)


def record_texts(record: Record, keys: Sequence[str], *, joins: bool = False) -> Texts:
    """The captions in a record: what the first of `keys` holds that it has. With `joins`, its tags follow each caption,
    as kohya's sd-scripts join them (train_util.py, FineTuningDataset)."""
    key = next((each for each in keys if each in record), None)
    if key is None:
        return ()
    texts = _strings(record[key], keys)
    if "tags" not in keys or "tags" not in record or (key != "tags" and not joins):
        return texts
    tags = ", ".join(_strings(record["tags"], keys))
    return (tags,) if key == "tags" else tuple(", ".join(filter(None, (text, tags))) for text in texts)


def one_line(text: str) -> str:
    """The lines joined with blanks."""
    # one pattern for line ends and the blanks around them would take quadratic time on a long row of blanks
    return " ".join(filter(None, (line.strip() for line in _LINE_END.split(text))))


def _read(path: Path) -> tuple[str, str]:
    """The text, and its encoding if that had to be found. Raises OSError or FileFault."""
    data = read_bytes(path, _MAX_BYTES)
    text = decode_unicode(data)
    if text is not None:
        return text, ""
    encoding = find_encoding(data[:SAMPLE])
    try:
        return data.decode(encoding or "utf-8"), encoding
    except UnicodeDecodeError as error:
        raise FileFault(f"is not UTF-8 text (byte {error.start})") from None


def _entries(
    records: Sequence[Record], path: Path, folder: str, keys: Sequence[str], problems: list[Problem]
) -> dict[str, Texts]:
    entries: dict[str, Texts] = {}
    several: dict[str, list[str]] = {}  # of images that are named again
    unnamed, columns, has_texts = 0, Counter[str](), False
    joins = path.suffix.lower() == ".json"
    for record in records:
        for each in record:
            columns[each] += 1
        name = _named(record)
        if not name:
            unnamed += 1
            continue
        key = posixpath.normpath(posixpath.join(folder, name.replace("\\", "/")))
        has_texts = has_texts or any(each in record for each in keys)
        texts = record_texts(record, keys, joins=joins)
        if key in entries:
            several.setdefault(key, list(entries[key])).extend(texts)
        else:
            entries[key] = texts
    entries |= {key: tuple(dict.fromkeys(texts)) for key, texts in several.items()}
    times = next((pair for pair in _TIMES if all(each in columns for each in pair)), None)
    if entries and times:
        what = f"its columns {' and '.join(times)} {NO_CLIPS}"
        problems.append(Problem(str(path), what))
    if unnamed and not entries:
        what = f"lacks one of the columns {', '.join(FILE_KEYS)}, with the names of images; it has {_shown(columns)}"
        problems.append(Problem(str(path), f"{NOT_USED} {what}"))
    elif unnamed:
        have = "entry has" if unnamed == 1 else "entries have"
        problems.append(Problem(str(path), f"{unnamed} {have} no `file_name`; ignored"))
    if cut := columns.pop(_BEYOND, 0):
        lines = "1 line has" if cut == 1 else f"{cut:,} lines have"
        what = f"{lines} {MORE_CELLS}, which are not used: a caption with a separator needs quotes"
        problems.append(Problem(str(path), what))
    if entries and not has_texts:
        wanted = f"the column {keys[0]!r}" if len(keys) == 1 else f"one of the columns {', '.join(keys)}"
        what = f"{NOT_USED} lacks {wanted}; it has {_shown(columns)}. See caption_column"
        problems.append(Problem(str(path), what))
        return {}
    return entries


def _named(record: Record) -> str:
    return next((value for key in FILE_KEYS if isinstance(value := record.get(key), str) and value), "")


def _shown(columns: Counter[str]) -> str:
    names = [each for each, _ in columns.most_common() if each not in (*FILE_KEYS, _BEYOND)]
    return ", ".join(printable(each, 40) for each in names[:8]) or "none"


def _table(text: str) -> list[Record]:
    """The rows of a table with a header; its separator is the one that sets the name of the images apart."""
    header = text[: text.find("\n") if "\n" in text else len(text)].strip("\r")
    separator = next((each for each in _SEPARATORS if not set(FILE_KEYS).isdisjoint(_cells(header, each))), ",")
    file = io.StringIO(text, newline="")
    reader = csv.DictReader(file, restkey=_BEYOND, delimiter=separator, skipinitialspace=f"{separator} " in header)
    return [{str(key): value for key, value in row.items()} for row in reader]


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip(' "') for cell in line.split(separator)]


def _json_lines(text: str, path: Path, problems: list[Problem]) -> list[Record]:
    """The records in the lines, or a list of them in one JSON text."""
    if text.lstrip().startswith("["):
        return _json_records(text)
    records: list[Record] = []
    faults: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = decode_json(line)
        except FileFault as fault:
            faults.append(f"line {number} {fault}; it was ignored")
            continue
        if isinstance(record, dict):
            records.append(record)
        else:
            faults.append(f"line {number} is not a JSON object; it was ignored")
    problems.extend(Problem(str(path), fault) for fault in faults[:_MAX_FAULTS])
    if len(faults) > _MAX_FAULTS:
        problems.append(Problem(str(path), f"{len(faults) - _MAX_FAULTS} more lines are no JSON objects"))
    if faults and not records:
        raise FileFault("has no line that is a JSON object")
    return records


def _json_records(text: str) -> list[Record]:
    """A list of records, or kohya's: the record, or the caption alone, by the name of the image. Also JSON lines."""
    try:
        data = decode_json(text)
    except FileFault:
        lines = text.strip().split("\n")
        if len(lines) < 2 or not all(line.startswith("{") and line.rstrip().endswith("}") for line in lines):
            raise
        data = [decode_json(line) for line in lines]
    if isinstance(data, list):
        return [each for each in data if isinstance(each, dict)]
    if not isinstance(data, dict):
        raise FileFault("is neither a list of records nor records by the name of an image")
    return [
        {**(value if isinstance(value, dict) else {"text": value}), "file_name": name} for name, value in data.items()
    ]


def _annotations(data: object) -> list[Record]:
    """COCO's, where images and their captions, about five of each, are listed apart."""
    images, annotations = (data.get(each) if isinstance(data, dict) else None for each in ("images", "annotations"))
    if not isinstance(images, list) or not isinstance(annotations, list):
        raise FileFault("lacks the lists images and annotations of COCO")
    texts = defaultdict[str, list[str]](list)
    for each in annotations:
        if isinstance(each, dict) and isinstance(each.get("caption"), str):
            texts[str(each.get("image_id"))].append(each["caption"])
    named = [each for each in images if isinstance(each, dict) and isinstance(each.get("file_name"), str)]
    return [{"file_name": each["file_name"], "text": texts[str(each.get("id"))]} for each in named]


def _list(text: str) -> list[Record]:
    """Lines such as NAME<tab>caption. An image that comes again has another caption."""
    lines = [line for each in text.splitlines() if (line := each.strip())]
    separated = {each: sum(_is_image(line.partition(each)[0]) for line in lines) for each in _SEPARATORS}
    separator = max(_SEPARATORS[::-1], key=lambda each: separated[each])
    if not separated[separator]:
        raise FileFault("is no list of captions: no line begins with the name of an image and a tab or a comma")
    pairs = (line.partition(separator) for line in lines)
    return [
        {"file_name": _name(name), "text": _unquoted(caption.strip())} for name, _, caption in pairs if _is_image(name)
    ]


def _is_image(name: str) -> bool:
    return os.path.splitext(_name(name))[1].lower() in _SUFFIXES


def _name(cell: str) -> str:
    return re.sub(r"#\d{1,3}$", "", cell.strip().strip('"'))  # Flickr30k counts the captions of an image: NAME#0


def _unquoted(cell: str) -> str:
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"') if is_quoted else cell


def _strings(value: object, keys: Sequence[str]) -> Texts:
    if isinstance(value, int) and keys is LABEL_KEYS:
        value = str(value)
    texts = value if isinstance(value, list) else [value]
    # JSON can contain a lone surrogate, which neither tokenizers nor files accept.
    return tuple(one_line(t.encode("utf-8", "replace").decode()) for t in texts if isinstance(t, str))


def _alike(texts: Mapping[str, Texts]) -> dict[str, str]:
    """Folded names -> the entry; "" if there are several. Names from elsewhere count by their last part, after //."""
    found: dict[str, str] = {}
    for key in texts:
        for name in _names(key):
            found[name] = "" if name in found else key
    return found


def _names(key: str) -> Iterator[str]:
    path = folded(key)
    yield path
    if path.startswith(("/", "../")) or path[1:3] == ":/":
        yield f"//{posixpath.basename(path)}"


def folded(path: str) -> str:
    """A path as one that differs in capitals or its Unicode form alone is written, too."""
    return path.lower() if path.isascii() else unicodedata.normalize("NFC", path).casefold()

"""metadata.jsonl and metadata.csv of a data set, and other files with the captions of many images."""

from __future__ import annotations

import csv
import io
import json
from random import Random
from typing import Any

from PIL import Image

from modules.config import Concept
from modules.data.index.captions import Captions, pack_captions
from modules.data.index.concept_rows import index_concept
from modules.data.index.index import no_progress
from modules.data.index.scan import scan_concept
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, file_replaced, json_changed, text_changed

_ROWS: tuple[dict[str, Any], ...] = (
    {"file_name": "a.png", "text": "a cat"},
    {"file_name": "b.png", "caption": ["one", "two"]},
    {"file_name": "sub\\c.png", "prompt": "three"},
    {"file_name": "../d.png", "text": None, "width": 512},
)


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        places.seeds.mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(places.seeds / "a.png")
        self._lines = [json.dumps(row).encode() for row in _ROWS]
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerows(
            [["file_name", "text"], *([row["file_name"], f'say "{n}",\nyes'] for n, row in enumerate(_ROWS))]
        )
        self._table = table.getvalue()
        by_name = {
            "a": {"caption": "a cat", "tags": "red, sitting"},
            "/data/b.png": "two",
            "sub/c.png": {"tags": ["x"]},
        }
        self._lists = {
            "metadata.json": json.dumps(by_name).encode(),
            "captions.json": json.dumps([*_ROWS, 5, None]).encode(),
            "captions.txt": b'a.png\tone\nb.png#0\t"two, three"\n\nsub/c.png\tfour\n',
            "metadata.tsv": self._table.replace(",", "\t").encode(),
            "captions.csv": self._table.replace(",", ";").encode("utf-16"),
        }

    def make(self, draw: Random) -> None:
        images = self._places.case / "images"
        (images / "sub").mkdir(parents=True)
        for name in ("a.png", "b.png", "sub/c.png"):
            (images / name).write_bytes((self._places.seeds / "a.png").read_bytes())
        folder = images / draw.choice(("", "sub"))
        name = draw.choice(list(self._lists))
        text = self._lists[name]
        changed = (
            json_changed(text, draw) if name.endswith(".json") and draw.random() < 0.5 else bytes_changed(text, draw)
        )
        (folder / name).write_bytes(changed)
        if draw.random() < 0.5:
            return
        (images / "metadata.jsonl").write_bytes(b"\n".join(self._lines))
        lines, chosen = list(self._lines), draw.random()
        if chosen < 0.08:
            file_replaced(folder / draw.choice(("metadata.jsonl", "metadata.csv")), self._places.outside, draw)
        elif chosen < 0.3:
            (folder / "metadata.csv").write_bytes(text_changed(self._table, draw))
        elif chosen < 0.7:
            at = draw.randrange(len(lines))
            lines[at] = json_changed(lines[at], draw)
            (folder / "metadata.jsonl").write_bytes(b"\n".join(lines))
        else:
            (folder / "metadata.jsonl").write_bytes(bytes_changed(b"\n".join(lines), draw))

    def read(self) -> str:
        concept = Concept.model_validate({"path": str(self._places.case / "images"), "caption_source": "auto"})
        scan = scan_concept(concept, with_masks=False)
        captions = Captions(concept, scan)
        captions.read_metadata()
        captions.findings([path.decode() for path in scan.paths], [False] * len(scan.paths))
        for path in scan.paths:
            found, _, _ = captions.find(path.decode(), has_caption_file=False)
            pack_captions(found).decode()
            assert all(isinstance(each, str) and "\n" not in each for each in found)
        rows = index_concept(0, scan, concept, None, no_progress)
        assert len(rows.paths) == 3, "an image was lost"
        return "; ".join(problem.what for problem in captions.problems)

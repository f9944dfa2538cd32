"""Caption files, and what becomes of them before a tokenizer."""

from __future__ import annotations

import json
from random import Random

from PIL import Image

from app.images.captions import CaptionFiles, read_caption, write_caption
from modules.config import Concept
from modules.config.captions import CaptionState
from modules.data.index.captions import Captions, pack_captions, unpack_captions
from modules.data.index.concept_rows import index_concept
from modules.data.index.index import no_progress
from modules.data.index.scan import scan_concept
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, file_changed, file_replaced, text_changed

_PLACES = ("{0}.txt", "{0}.TXT", "{0}.caption", "{0}.png.txt", "captions/{0}.txt", "{0}.json")
_ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "cp1252", "cp932", "gb18030")
_RECORD = {"caption": "a cat, red", "tags": ["sitting", 1, None], "width": 512}
_TEXT = "a cat, sitting on a mat, best quality\nzwei Katzen, draußen 1.5\r\n  \n(a:1.2) <lora:x:1> {a|b}\n"


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        places.seeds.mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(places.seeds / "a.png")

    def make(self, draw: Random) -> None:
        case, image = self._places.case / "images", (self._places.seeds / "a.png").read_bytes()
        case.mkdir()
        for name in ("a", "b", "c"):
            (case / f"{name}.png").write_bytes(image)
        (case / "captions").mkdir()
        places = {name: draw.choices(_PLACES, (8, 1, 2, 2, 2, 3))[0].format(name) for name in ("a", "b", "c")}
        for place in places.values():
            text = json.dumps(_RECORD) if place.endswith(".json") else _TEXT
            encoding = draw.choice(_ENCODINGS) if draw.random() < 0.3 else "utf-8"
            (case / place).write_bytes(text.encode(encoding, "replace"))
        for name in draw.choices(("a", "b", "c"), k=2):
            file, chosen = case / places[name], draw.random()
            if chosen < 0.15:
                file_replaced(file, self._places.outside, draw)
            else:
                file_changed(file, _text_changed if chosen < 0.6 else bytes_changed, draw)
        settings = {
            "caption_lines": draw.choice(("random", "first", "whole")),
            "caption_source": draw.choice(("auto", "txt")),
            "caption_extension": draw.choice((".txt", ".caption .txt")),
        }
        (self._places.case / "settings").write_text("\n".join(settings.values()))

    def read(self) -> str:
        lines, source, extension = (self._places.case / "settings").read_text().split("\n")
        concept = Concept.model_validate(
            {
                "path": str(self._places.case / "images"),
                "caption_lines": lines,
                "caption_source": source,
                "caption_extension": extension,
            }
        )
        scan = scan_concept(concept, with_masks=False)
        captions, problems, encoded = Captions(concept, scan), [], []
        for path, stamps in zip(scan.paths, scan.stamps.tolist(), strict=True):
            found, state, _ = captions.find(path.decode(), has_caption_file=stamps[1][0] >= 0)
            packed = pack_captions(found)
            assert len(unpack_captions(packed)) == max(1, len(found)), "other captions come out of the index"
            problems += [state.explain()] if state else []
            encoded += [path.decode()] if state == CaptionState.OTHER_ENCODING else []
        captions.find_encoded(encoded)
        rows = index_concept(0, scan, concept, None, no_progress)
        assert len(rows.paths) == 3, "an image was lost"
        assert all(pack_captions(unpack_captions(each)) == each for each in rows.captions)
        problems += self._edit(concept)
        return problems[0] if problems else ""

    def _edit(self, concept: Concept) -> list[str]:
        """The window's editor."""
        files = CaptionFiles.of(concept.model_dump())
        image = self._places.case / "images" / "a.png"
        try:
            read_caption(files.file(image))
            write_caption(image, "another caption", files)
        except (OSError, ValueError) as error:  # shown in the editor
            return [f"the editor cannot change it: {type(error).__name__}"]
        return []


def _text_changed(data: bytes, draw: Random) -> bytes:
    return text_changed(data.decode("utf-8", "replace"), draw)

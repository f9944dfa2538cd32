"""scripts/convert.py: single files, layouts, model folders and LoRA to merge, any of which somebody else made."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

import torch

from modules.checkpoint.formats import LoraWeights, architecture_of, read_diffusers_folder, write_lora
from modules.checkpoint.formats.conversion import folder_to_single_file, tensor_names
from modules.checkpoint.formats.diffusers_folder import ComponentWeights
from modules.files import remove_tree
from scripts.convert import adapter_names
from scripts.convert import main as convert
from tests.families.tiny_pipelines import tiny_sd
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, file_changed, file_replaced, json_changed, safetensors_changed

_ATTENTION = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        folder = tiny_sd(places.seeds / "model")
        folder_to_single_file(folder, places.seeds / "single.safetensors", torch.float32)
        with ComponentWeights(folder / "unet") as unet:
            rows, columns = unet.shape(f"{_ATTENTION}.weight")
        weights = [LoraWeights("unet", _ATTENTION, torch.randn(2, columns), torch.randn(rows, 2), 1.0, None)]
        prefixes = adapter_names(architecture_of(read_diffusers_folder(folder)))
        write_lora(places.seeds / "lora.safetensors", weights, "kohya", prefixes, {}, torch.float32)
        for words in _TASKS.values():  # imports what is imported only then
            assert not _refusal(places.seeds, words)
            remove_tree(places.seeds / words[1])

    def make(self, draw: Random) -> None:
        seeds, case = self._places.seeds, self._places.case
        task = draw.choice(sorted(_TASKS))
        inputs = [word for word in _TASKS[task] if (seeds / word).exists()]
        for name in inputs:
            (shutil.copytree if (seeds / name).is_dir() else shutil.copy)(seeds / name, case / name)
        for name in draw.choices(inputs, k=draw.choice((1, 1, 2))):
            self._change(case / name, draw)
        (case / "task").write_text(task)

    def _change(self, place: Path, draw: Random) -> None:
        if not place.is_dir():
            return file_changed(place, safetensors_changed if draw.random() < 0.8 else bytes_changed, draw)
        paths = sorted(path for path in place.rglob("*") if path.name not in ("vocab.json", "merges.txt"))
        for path in draw.choices(paths, k=draw.choice((1, 1, 2))):
            if draw.random() < 0.2:
                file_replaced(path, self._places.outside, draw)
            else:
                change = json_changed if path.suffix == ".json" else safetensors_changed
                file_changed(path, change if draw.random() < 0.9 else bytes_changed, draw)
        return None

    def read(self) -> str:
        case = self._places.case
        words = _TASKS[(case / "task").read_text()]
        out, refusal = case / words[1], _refusal(case, words)
        if refusal:
            assert not out.exists(), "a part of it was written"
            return refusal
        if out.is_dir():
            for name in read_diffusers_folder(out).components:
                with ComponentWeights(out / name) as weights:
                    assert weights.names
        else:
            assert tensor_names(out)
        return ""


_TASKS = {
    "to_folder": ["single.safetensors", "out", "--to", "diffusers", "--layout", "model", "--dtype", "fp16"],
    "to_file": ["model", "out.safetensors", "--to", "single_file", "--dtype", "fp16"],
    "merge_folder": ["model", "out", "--merge", "lora.safetensors"],
    "merge_file": ["single.safetensors", "out.safetensors", "--merge", "lora.safetensors"],
}


def _refusal(folder: Path, words: list[str]) -> str:
    """What the command says if it fails; "" if it succeeds."""
    places = [str(folder / word) if word in ("out", "model") or "." in word else word for word in words]
    errors = io.StringIO()
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        code = convert(places)
    return errors.getvalue().strip() or f"it ended with {code}" if code else ""

"""Model files as they are published: shards and their index, weights with scales, and GGUF."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file

from app.base_model import inspect_base_model
from modules.diffusion.finite import is_finite
from modules.diffusion.model_files.open_file import open_model_file
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, file_changed, json_changed, safetensors_changed

_INDEX = "x.safetensors.index.json"


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        places.seeds.mkdir(parents=True, exist_ok=True)
        scaled = {
            "net.a.weight": torch.ones(4, 16).to(torch.float8_e4m3fn),
            "net.a.weight_scale": torch.ones(4, 1),
            "net.a.comfy_quant": torch.tensor(list(b'{"format": "float8_e4m3fn"}'), dtype=torch.uint8),
            "net.b.weight": torch.ones(4, 16, dtype=torch.int8),
            "net.b.scale_weight": torch.ones(4, 4, 1),
            "net.n": torch.ones(3).bfloat16(),
        }
        layers = {"b": {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 16}}
        save_file(scaled, places.seeds / "x.safetensors", {"_quantization_metadata": json.dumps({"layers": layers})})
        (places.seeds / _INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(scaled, "x.safetensors")}))
        fields = [(b"general.alignment", 4, struct.pack("<I", 32)),
                  (b"comfy.gguf.orig_shape.a", 9, struct.pack("<IQ2i", 5, 2, 8, 4)),
                  (b"tokens", 9, struct.pack("<IQQ1sQ2s", 8, 2, 1, b"a", 2, b"bc"))]  # fmt: skip
        tensors = [(b"a", (32,), 0, 0), (b"b", (32, 2), 8, 128), (b"c", (256,), 12, 224)]
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
        for name, kind, value in fields:
            head += struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value
        for name, sides, kind, offset in tensors:
            head += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(sides))
            head += struct.pack(f"<{len(sides)}QIQ", *sides, kind, offset)
        (places.seeds / "x.gguf").write_bytes(head + b"\0" * (-len(head) % 32) + bytes(range(256)) * 2)

    def make(self, draw: Random) -> None:
        name = draw.choice(("x.gguf", "x.gguf", "x.safetensors", _INDEX))
        for seed in ("x.safetensors", name):
            shutil.copy(self._places.seeds / seed, self._places.case)
        file = self._places.case / name
        is_json = name == _INDEX
        kinds = json_changed if is_json else safetensors_changed if name == "x.safetensors" else bytes_changed
        file_changed(file, kinds if draw.random() < 0.8 else bytes_changed, draw)
        (self._places.case / "name").write_text(name)

    def read(self) -> str:
        file = self._places.case / Path((self._places.case / "name").read_text())
        inspect_base_model(str(file))
        with open_model_file(file) as source:
            for name in source.names:
                tensor = source.map(name)
                assert tuple(tensor.shape) == source.shape(name)
                assert tensor.dtype == source.stored_dtype(name)
                is_finite(tensor)
        return ""

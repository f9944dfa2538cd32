"""Model folders, single files, shard indices, scheduler configs and saved models, loaded as for training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import torch

from modules.checkpoint import read_model_config
from modules.checkpoint.formats import architecture_of, read_diffusers_folder
from modules.checkpoint.formats.conversion import convert_dtype, folder_to_single_file
from modules.diffusion.base_model_files import find_base_model
from modules.diffusion.components import check_base_model, load_components, read_schedule
from modules.diffusion.hub.files import is_complete
from modules.diffusion.hub.model import HubModel
from modules.diffusion.stored_dtype import dtype_of
from modules.families.stable_diffusion import StableDiffusion
from tests.families.tiny_pipelines import tiny_sd
from tests.torture.kind import Places
from tests.torture.mutations import WORDS, bytes_changed, file_changed, file_replaced, json_changed, safetensors_changed

_FACTS = StableDiffusion.facts
_INDEX = "diffusion_pytorch_model.safetensors.index.json"


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        folder = tiny_sd(places.seeds / "model")
        folder_to_single_file(folder, places.seeds / "single.safetensors", torch.float32)
        info = {"version": 1, "family": "stable_diffusion", "family_options": {}, "resolution": 64, "step": 3,
                "adapter": {}, "metadata": {"modelspec.title": "x"}}  # fmt: skip
        (folder / "tandem.json").write_text(json.dumps(info))
        names = {
            "a.weight": "diffusion_pytorch_model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }
        index = {"metadata": {"total_size": 99}, "weight_map": names}
        (places.seeds / _INDEX).write_text(json.dumps(index))

    def make(self, draw: Random) -> None:
        case, chosen = self._places.case, draw.random()
        if chosen < 0.25:
            file = Path(shutil.copy(self._places.seeds / "single.safetensors", case))
            file_changed(file, safetensors_changed if draw.random() < 0.8 else bytes_changed, draw)
            return
        if chosen < 0.3:
            (case / "name").write_bytes(draw.choice(WORDS).encode("utf-8", "surrogatepass"))
            return
        model = Path(shutil.copytree(self._places.seeds / "model", case / "model"))
        if draw.random() < 0.25:  # its shards are missing
            shutil.copy(self._places.seeds / _INDEX, model / "unet")
        files = sorted(path for path in model.rglob("*") if path.name not in ("vocab.json", "merges.txt"))
        for path in draw.choices(files, k=draw.choice((1, 1, 2))):
            if draw.random() < 0.15:
                file_replaced(path, self._places.outside, draw)
            elif path.suffix == ".json":
                file_changed(path, json_changed, draw)
            else:
                file_changed(path, safetensors_changed if draw.random() < 0.8 else bytes_changed, draw)

    def read(self) -> str:
        case = self._places.case
        if (case / "name").exists():
            name = (case / "name").read_bytes().decode("utf-8", "surrogatepass")
            found = find_base_model(name, _FACTS.pipelines, _FACTS.components)
            return "it is a model on the hub" if isinstance(found, HubModel) else ""
        if (file := case / "single.safetensors").exists():
            check_base_model(file, str(self._places.seeds / "model"), _FACTS)
            dtype_of([file])
            read_schedule(file, "")
            convert_dtype(file, case / "half.safetensors", torch.float16)
            return ""
        model = case / "model"
        is_complete(model, _FACTS.components, weights=True)
        check_base_model(model, "", _FACTS)
        read_model_config(model)
        architecture_of(read_diffusers_folder(model))
        folder_to_single_file(model, case / "out.safetensors", torch.float16)
        components = load_components(str(model), "", _FACTS)
        assert components.latent_shape(64, 64)[1] > 0
        return ""

"""Tiny captioning, tagging and mask models, through the functions that the program calls."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    BlipForConditionalGeneration,
    BlipImageProcessorPil,
    CLIPImageProcessorPil,
    CLIPSegForImageSegmentation,
    CLIPSegProcessor,
    Florence2ForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from modules.annotation import Header, ProposalSet
from modules.annotators import caption, mask
from modules.annotators.caption import Captioner
from modules.annotators.mask import Masker, MaskShape
from modules.annotators.model_folder import model_folder
from modules.annotators.propose import Wording, _annotated, images_left, propose
from modules.annotators.select import select_images
from modules.annotators.tags import _PROCESS, TagChoice, Tagger, prepared, read_tags
from modules.config import ConfigError
from modules.diffusion.hub.one_model import is_complete_model, required_model_files
from modules.diffusion.image_processors import check_image_sizes
from tests.annotators.tiny_models import tiny_blip, tiny_clipseg, tiny_florence2, tiny_git
from tests.annotators.tiny_tagger import TAGS, tiny_tagger

CPU = torch.device("cpu")
IMAGES = [Image.new("RGB", (40, 30), "red"), Image.effect_noise((50, 64), 90).convert("RGB")]


@pytest.fixture(scope="module")
def blip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_blip(tmp_path_factory.mktemp("blip"))


@pytest.fixture(scope="module")
def clipseg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_clipseg(tmp_path_factory.mktemp("clipseg"))


def captioner(folder: Path, prompt: str = "") -> Captioner:
    return Captioner(folder, CPU, torch.float32, prompt=prompt, max_tokens=5, name="tiny")


def test_blip_says_what_transformers_says(blip: Path) -> None:
    model = captioner(model_folder(str(blip), "transformers", caption.MODEL_TYPES))
    texts = model(IMAGES)
    reference = BlipForConditionalGeneration.from_pretrained(blip)
    for image, text in zip(IMAGES, texts, strict=True):
        pixels = model._processor(images=image, return_tensors="pt").pixel_values
        made = reference.generate(pixel_values=pixels, max_new_tokens=5, do_sample=False)
        assert text == model._processor.decode(made[0], skip_special_tokens=True).strip()
        assert len(text.split()) >= 3
    assert all(text.startswith("a photo of ") for text in captioner(blip, "a photo of")(IMAGES))


@pytest.mark.slow
def test_florence2_describes_by_its_tasks(tmp_path: Path) -> None:
    model = captioner(model_folder(str(tiny_florence2(tmp_path)), "transformers", caption.MODEL_TYPES))
    assert model.prompt == "<MORE_DETAILED_CAPTION>"
    reference: Any = Florence2ForConditionalGeneration.from_pretrained(tmp_path)
    for image, text in zip(IMAGES, model(IMAGES), strict=True):
        asked = model._processor([image], "Describe with a paragraph what is shown in the image.", return_tensors="pt")
        made = reference.generate(**asked, max_new_tokens=5, do_sample=False)
        assert text == model._processor.decode(made[0], skip_special_tokens=True).strip()
        assert len(text.split()) >= 3
    assert captioner(tmp_path, "<OCR>")(IMAGES) != model(IMAGES)
    with pytest.raises(ConfigError, match=r"--prompt is '<OD>'; of Florence-2's tasks <OCR>, <CAPTION>, <DETAILED"):
        captioner(tmp_path, "<OD>")


def test_git_goes_on_after_the_prompt(tmp_path: Path) -> None:
    """As published: without the end token, and without what its tokenizer says of segments."""
    model = captioner(tiny_git(tmp_path), "a photo of")
    assert model.prompt == "a photo of"
    texts = model(IMAGES)
    for image, text in zip(IMAGES, texts, strict=True):
        assert text.startswith("a photo of ")
        words = model._processor.tokenizer("a photo of", return_tensors="pt").input_ids[:, :-1]
        pixels = model._processor(images=image, return_tensors="pt").pixel_values
        made = model._model.generate(pixel_values=pixels, input_ids=words, max_new_tokens=5, do_sample=False)
        assert text == model._processor.decode(made[0], skip_special_tokens=True)


def test_no_code_of_processors_and_no_empty_vocabulary(
    tmp_path: Path, blip: Path, clipseg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *words: pytest.fail("asked whether to run foreign code"))
    own = {"image_processor_type": "Own", "auto_map": {"AutoImageProcessor": "own.Own"}}

    def masker(folder: Path) -> Masker:
        return Masker(folder, CPU, torch.float32, prompts=["a"], shape=MaskShape(), name="tiny")

    for folder, load in ((blip, captioner), (clipseg, masker)):
        copy = Path(shutil.copytree(folder, tmp_path / folder.name))
        (copy / "own.py").write_text("raise SystemExit")
        (copy / "processor_config.json").write_text(json.dumps({"image_processor": own}))
        with pytest.raises(ConfigError, match="needs Python code from its own repository"):
            load(copy)
    shutil.copy(blip / "processor_config.json", tmp_path / blip.name)
    words = tmp_path / blip.name / "tokenizer.json"
    words.write_text(words.read_text().replace('"big"', f'"{"b" * 20_000}"'))
    with pytest.raises(ConfigError, match="'tiny' has a token of 20,000 characters"):
        captioner(tmp_path / blip.name)
    words.unlink()
    with pytest.raises(ConfigError, match="'tiny' has no vocabulary"):
        captioner(tmp_path / blip.name)


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (BlipImageProcessorPil(), ""),
        (Qwen2VLImageProcessorPil(), ""),  # whose longest edge of a million is a number of pixels
        (BlipImageProcessorPil(size={"height": 10**9, "width": 8}), "asks for images of 1,000,000,000 pixels a side"),
        (CLIPImageProcessorPil(crop_size=10**5), "100,000 pixels a side (crop_size.height of its image processor)"),
        (CLIPImageProcessorPil(crop_size=10**400), "images of 10,000,000,000,000,000,"),
        (Qwen2VLImageProcessorPil(patch_size=10**6), "images in pieces of 1,000,000 x 2 pixels a side"),
        (Qwen2VLImageProcessorPil(min_pixels=4 * 10**6), "images of 4,000,000 pixels (size.shortest_edge"),
    ],
)
def test_images_are_not_enlarged_without_a_limit(processor: Any, said: str) -> None:
    if not said:
        check_image_sizes(processor, "tiny")
        return
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_image_sizes(processor, "tiny")


def test_masks_are_onetrainers(clipseg: Path) -> None:
    """Its formula: sigmoid, average, scale, threshold, average again, more than 0."""
    shape = MaskShape(threshold=0.5, smooth=2, expand=3)
    masker = Masker(
        model_folder(str(clipseg), "transformers", mask.MODEL_TYPES), CPU, torch.float32,
        prompts=["a cat", "dog"], shape=shape, name="tiny",
    )  # fmt: skip
    masker._processor.tokenizer.model_max_length = 100  # a foreign tokenizer_config.json may name any number
    processor: Any = CLIPSegProcessor.from_pretrained(clipseg)
    model = CLIPSegForImageSegmentation.from_pretrained(clipseg)
    for image, made in zip(IMAGES, masker(IMAGES), strict=True):
        inputs = processor(text=["a cat", "dog"], images=[image] * 2, padding="max_length", return_tensors="pt")
        with torch.no_grad():
            grid = model(**inputs).logits.sigmoid().amax(dim=0)
        smooth = F.conv2d(F.pad(grid[None, None], [2] * 4, mode="replicate"), torch.full((1, 1, 5, 5), 1 / 25))
        large = F.interpolate(smooth, (image.height, image.width), mode="bilinear")
        white = F.conv2d((large > 0.5).float(), torch.ones(1, 1, 7, 7), padding=3) > 0
        assert made.size == image.size
        np.testing.assert_array_equal(np.asarray(made) > 0, white[0, 0].numpy())


def test_shape_of_masks() -> None:
    grid = torch.zeros(8, 8)
    grid[2:4, 2:4] = 1.0
    plain = MaskShape(threshold=0.49, smooth=0, expand=0).mask(grid, (80, 40))
    assert plain.getbbox() == (20, 10, 40, 20)
    grown = MaskShape(threshold=0.49, smooth=0, expand=5).mask(grid, (80, 40))
    assert grown.getbbox() == (15, 5, 45, 25)
    inverted = MaskShape(threshold=0.49, smooth=0, expand=5, invert=True).mask(grid, (80, 40))
    assert np.array_equal(np.asarray(inverted), 255 - np.asarray(grown))


def test_images_are_prepared_as_the_published_tagger_does() -> None:
    image = Image.new("RGB", (4, 2), (10, 20, 30))
    array = prepared(image, 4)
    assert array.shape == (4, 4, 3)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array[1:3], np.full((2, 4, 3), (30, 20, 10)))  # BGR
    np.testing.assert_array_equal(array[[0, 3]], np.full((2, 4, 3), 255))
    assert prepared(image, 8).shape == (8, 8, 3)


def test_choice_of_tags() -> None:
    known = [(name, category) for _, name, category in TAGS]
    likely = np.array([0.1, 0.6, 0.4, 0.35, 0.9, 0.5, 0.84], dtype=np.float32)
    assert TagChoice().tags(known, likely) == ["red dress", "o_o", "blue sky"]
    assert TagChoice(character_threshold=0.8, with_rating=True, exclude=("Blue sky",)).tags(known, likely) == [
        "explicit", "miss red", "red dress", "o_o",
    ]  # fmt: skip
    assert TagChoice(threshold=0.6, keep_underscores=True).tags(known, likely) == ["red_dress"]


def test_tagger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = model_folder(str(tiny_tagger(tmp_path / "tagger")), "tagger")
    tagger = Tagger(folder, TagChoice(), on_gpu=False, name="tiny")
    assert tagger([Image.new("RGB", (20, 20), colour) for colour in ("red", "blue", "black")]) == [
        "miss red, red dress, o_o",
        "blue sky",
        "",
    ]
    assert not list((tmp_path / "home").iterdir()), "onnxruntime keeps there who its telemetry is about"
    tagger._batch = 2  # as if it were fixed
    assert tagger([Image.new("RGB", (20, 20), colour) for colour in ("red", "red", "blue")])[1:] == [
        "miss red, red dress, o_o",
        "blue sky",
    ]
    onnx = pytest.importorskip("onnx")
    damaged = onnx.load(folder / "model.onnx")
    damaged.graph.initializer[2].CopyFrom(onnx.helper.make_tensor("bias", 1, [len(TAGS)], [math.nan] * len(TAGS)))
    onnx.save(damaged, folder / "model.onnx")
    with pytest.raises(ConfigError, match=r"'tiny' gives probabilities that are not finite"):
        Tagger(folder, TagChoice(), on_gpu=False, name="tiny")(IMAGES)
    tagger._side = 8  # errors of onnxruntime are none of Python's
    with pytest.raises(RuntimeError, match="invalid dimensions"):
        tagger(IMAGES)
    model = onnx.load(folder / "model.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 31  # 6 TB, if it were filled up
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "selected_tags.csv").write_bytes((folder / "selected_tags.csv").read_bytes())
    (tmp_path / "many" / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match="at most 64 images"):
        Tagger(tmp_path / "many", TagChoice(), on_gpu=False, name="tiny")
    (folder / "selected_tags.csv").write_text("tag_id,name,category,count\n1,red,0,1\n")
    with pytest.raises(ConfigError, match="7 outputs and 1 tags"):
        Tagger(folder, TagChoice(), on_gpu=False, name="tiny")
    (folder / "model.onnx").write_bytes(b"none")
    with pytest.raises(ConfigError, match=r"model\.onnx of 'tiny' cannot be loaded"):
        Tagger(folder, TagChoice(), on_gpu=False, name="tiny")


def test_a_tagger_process_that_ends_is_not_called_slow(tmp_path: Path) -> None:
    """Before its answer, amid it, or at images that it cannot read; only the end of its time is exit code 1."""
    pytest.importorskip("onnxruntime")
    tagger = Tagger(tiny_tagger(tmp_path / "tagger"), TagChoice(), on_gpu=False, name="tiny")
    assert tagger._process.stdin is not None
    tagger._process.stdin.write(b'{"shape": [1, -1, "x"]}\n')
    tagger._process.stdin.flush()
    with pytest.raises(RuntimeError, match="TypeError"):
        tagger._answer("1 s")
    with pytest.raises(ConfigError, match=r"ends onnxruntime \(exit code 0\)"):
        tagger(IMAGES)
    for said in (f'{{"shape": [{len(IMAGES)}, {len(TAGS)}]}}\n1234', '{"shape": ['):
        program = f"import sys; sys.stdout.write({said!r}); sys.exit(5)"
        tagger._process = subprocess.Popen(
            [sys.executable, "-Sc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with pytest.raises(ConfigError, match=r"ends onnxruntime \(exit code 5\)"):
            tagger(IMAGES)
        tagger._process.communicate()
    done = subprocess.run([sys.executable, "-P", _PROCESS, "x", "no number", "", ""], check=False)
    assert done.returncode == 2, "as after any exception"


@pytest.mark.parametrize("place", ["../secret", "/etc/hostname", "link"])
def test_a_tagger_has_no_data_from_elsewhere(tmp_path: Path, place: str) -> None:
    """It is onnxruntime that refuses it."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    folder = tiny_tagger(tmp_path / "tagger")
    model = onnx.load(folder / "model.onnx")
    (weights,) = [each for each in model.graph.initializer if each.name == "weights"]
    for file in (folder / "inside", tmp_path / "secret"):
        file.write_bytes(bytes(4 * len(weights.float_data)))
    (folder / "link").symlink_to("../secret")
    weights.ClearField("float_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    location = weights.external_data.add(key="location", value="inside")
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    Tagger(folder, TagChoice(), on_gpu=False, name="tiny")
    location.value = place
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match=r"model\.onnx of 'tiny' cannot be loaded"):
        Tagger(folder, TagChoice(), on_gpu=False, name="tiny")


def test_a_tagger_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of 2^62 rounds; a tensor of 4 TB between others; and 2^30 calls, which are written out at loading."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    folder = tiny_tagger(tmp_path / "tagger")
    whole = (folder / "model.onnx").read_bytes()

    def tagger(*nodes: Any, functions: Sequence[Any] = (), **constants: list[int]) -> Tagger:
        model = onnx.load_from_string(whole)
        model.graph.node[-1].input[0] = "last"
        model.graph.node.extend(nodes)
        model.graph.node.append(model.graph.node.pop(3))
        model.opset_import.append(onnx.helper.make_opsetid("own", 1))
        model.functions.extend(functions)
        for name, values in constants.items():
            size = [len(values)] if name == "shape" else []
            model.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, size, values))
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return Tagger(folder, TagChoice(), on_gpu=False, name="tiny")

    node, value, kinds = onnx.helper.make_node, onnx.helper.make_tensor_value_info, onnx.TensorProto
    body = onnx.helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["x", "x"], ["y"])],
        "body",
        [value("i", kinds.INT64, []), value("go", kinds.BOOL, []), value("x", kinds.FLOAT, None)],
        [value("on", kinds.BOOL, []), value("y", kinds.FLOAT, None)],
    )
    large = [node("Expand", ["mean", "shape"], ["large"]), node("ReduceMax", ["large"], ["most"], keepdims=0)]
    huge = tagger(*large, node("Add", ["sum", "most"], ["last"]), shape=[1 << 20, 1 << 20, 1, 3])
    with pytest.raises(RuntimeError, match="Available memory of"):
        huge([Image.new("RGB", (8, 8))])
    monkeypatch.setattr("modules.annotators.tags._MOST_SECONDS", 0.1)
    endless = tagger(node("Loop", ["rounds", "", "sum"], ["last"], body=body), rounds=[1 << 62])
    with pytest.raises(ConfigError, match=r"--model: 'tiny' takes more than 0\.1 s for an image"):
        _annotated(endless, [Image.new("RGB", (8, 8))])
    monkeypatch.setattr("modules.annotators.tags._MOST_LOADING_SECONDS", 0.5)
    versions = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("own", 1)]
    bodies = [[(f"F{level + 1}", "a", "b"), (f"F{level + 1}", "b", "c")] for level in range(29)]
    functions = [
        onnx.helper.make_function(
            "own", f"F{level}", ["a"], ["c"], [node(f, [a], [b], domain="own") for f, a, b in body], versions
        )
        for level, body in enumerate(bodies)
    ]
    functions.append(onnx.helper.make_function("own", "F29", ["a"], ["c"], [node("Identity", ["a"], ["c"])], versions))
    with pytest.raises(ConfigError, match=r"--model: 'tiny' takes more than 0\.5 s to be loaded"):
        tagger(node("F0", ["sum"], ["last"], domain="own"), functions=functions)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "tag_id,name,category,count\n1,x,9,1\n"])
def test_lists_that_are_no_tags(tmp_path: Path, text: str) -> None:
    (tmp_path / "selected_tags.csv").write_text(text)
    with pytest.raises(ConfigError, match="tags"):
        read_tags(tmp_path / "selected_tags.csv")


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as error:
        model_folder(str(folder), "transformers", caption.MODEL_TYPES)
    return str(error.value)


def test_models_that_are_refused(tmp_path: Path, blip: Path) -> None:
    config = json.loads((blip / "config.json").read_text())
    assert "has no config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "has no weights" in refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    assert "only as a pickled file" in refusal(tmp_path)
    weights = (blip / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:1000])
    assert f"{str(tmp_path / 'model.safetensors')!r} is damaged or truncated." in refusal(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(weights)
    model_folder(str(tmp_path), "transformers", caption.MODEL_TYPES)
    own_code = {"model_type": "internlmx", "auto_map": {"AutoModel": "modeling.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(own_code))
    assert "needs Python code from its own repository (trust_remote_code), which Tandem never runs" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert "of the type 'bert'" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))
    assert "num_hidden_layers" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"_attn_implementation": {"": "owner/kernel"}}))
    assert "chooses code from elsewhere (_attn_implementation is " in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"_attn_implementation": "sdpa"}))
    model_folder(str(tmp_path), "transformers", caption.MODEL_TYPES)
    assert "there is no folder" in refusal(tmp_path / "nowhere")
    assert load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize("kind", ["blip", "clipseg"])
def test_weights_that_are_not_finite_are_named(kind: str, blip: Path, clipseg: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(blip if kind == "blip" else clipseg, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("fc1.weight"))
    weights[name][0, 0] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=rf"not finite \(NaN or infinity\) in '.*{re.escape(name[-20:])}'"):
        captioner(folder) if kind == "blip" else Masker(
            folder, CPU, torch.float32, prompts=["x"], shape=MaskShape(), name="tiny"
        )


def test_files_of_one_model(tmp_path: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    others = ["config.json", "tokenizer.json", "merges.txt", "chat_template.jinja", "modeling.py", "model.onnx"]
    index = "model.safetensors.index.json"
    chosen = required_model_files("m", [*shards, *others, index, "pytorch_model.bin"], "transformers")
    assert set(chosen) == {*shards, *others[:4], index}
    assert required_model_files("m", [*others, "selected_tags.csv"], "tagger") == ["selected_tags.csv", "model.onnx"]
    for name in (*chosen, shards[1]):
        (tmp_path / name).write_text("{}")
    (tmp_path / index).write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}))
    assert is_complete_model(tmp_path, "transformers")
    (tmp_path / shards[1]).unlink()
    assert not is_complete_model(tmp_path, "transformers")


def test_an_image_at_which_the_model_fails_is_listed(tmp_path: Path) -> None:
    class Sensitive:
        longest: int | None = None

        def __call__(self, images: Sequence[Image.Image]) -> list[str]:
            if any(image.width == 9 for image in images):
                return ["too", "many", "results"]
            if any(image.width == 7 for image in images):
                raise ValueError("aspect ratio")
            return ["a cat" for _ in images]

    for number in range(5):
        Image.new("RGB", (5 + number, 4)).save(tmp_path / f"{number}.png")
    header = Header(task="caption", folder=str(tmp_path), model="m", mode="missing", ending=".txt", settings={})
    proposals = ProposalSet.create(tmp_path / "out", header)
    images = select_images(header).images
    propose(proposals, images, Sensitive(), Wording(suffix=", new"), 4, lambda proposal: None)
    made = proposals.read()
    assert [made[f"{number}.png"].text for number in (0, 1, 3)] == ["a cat, new"] * 3
    assert made["2.png"].error == "the model fails at this image (ValueError: aspect ratio)"
    assert made["4.png"].error == "the model fails at this image (ValueError: 3 results for 1 images)"
    assert [image.relative for image in images_left(proposals, images)] == ["2.png", "4.png"]

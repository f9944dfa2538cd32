"""Augmentation, mixing and counts: what they promise of each sample, batch and rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from modules.classification.augment import OPERATIONS, Augmentation, Labels, random_crop, random_erase
from modules.classification.confusion import accuracies, count, draw_matrix
from modules.classification.mixing import Mixing, sample_beta
from modules.classification.networks import build_network, head_name, normalization
from modules.config import ConfigError
from modules.data.loading.micro_batches import micro_batches
from modules.data.loading.order import StepSamples
from modules.distributed.ddp import with_sync_batch_norm
from tests.runs import group_on_a_gpu

LABELS = Labels({"cat": 0, "dog": 1})


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def image(seed: int, side: int = 24) -> Tensor:
    return torch.randint(256, (3, side, side), generator=generator(seed), dtype=torch.uint8)


def test_a_sample_is_a_function_of_its_seed() -> None:
    augment = Augmentation(LABELS, rand_augment=2, magnitude=9, crop_padding=3, erasing=0.5)
    seen = set()
    for seed in range(80):
        first, again = (augment({"pixels": image(0)}, "dog", generator(seed)) for _ in range(2))
        assert torch.equal(first["pixels"], again["pixels"])
        assert first["pixels"].dtype == torch.uint8
        assert first["pixels"].shape == (3, 24, 24)
        assert int(first["label"]) == 1
        seen.add(first["pixels"].numpy().tobytes())
    assert len(seen) > 75


@pytest.mark.parametrize("number", range(len(OPERATIONS)))
def test_every_operation_does_nothing_or_changes_an_image_of_its_size(number: int) -> None:
    from PIL import Image

    before = Image.fromarray(image(1).permute(1, 2, 0).numpy())
    for strength in (0.0, 0.5, 1.0):
        for sign in (1.0, -1.0):
            after = OPERATIONS[number](before, strength, sign)
            assert (after.size, after.mode) == (before.size, "RGB")
            if number:
                assert strength == 0 or not np.array_equal(np.asarray(after), np.asarray(before)) or number == 1


def test_a_crop_shows_a_part_of_the_padded_image() -> None:
    pixels = image(2, 8) // 2 + 1
    places = set()
    for seed in range(400):
        cropped = random_crop(pixels, 2, generator(seed))
        filled = (cropped[0] > 0).nonzero()
        rows, columns = filled[:, 0].unique(), filled[:, 1].unique()
        assert min(len(rows), len(columns)) >= 6
        places.add((int(rows[0]), len(rows), int(columns[0]), len(columns)))
    assert len(places) == 25


def test_erasing_changes_one_rectangle_of_the_promised_area() -> None:
    for seed in range(60):
        changed = (random_erase(torch.zeros_like(image(0)), generator(seed)) > 0).any(dim=0).nonzero()
        height, width = (int(changed[:, axis].max() - changed[:, axis].min() + 1) for axis in (0, 1))
        assert 0.01 * 24**2 < height * width < 0.4 * 24**2
        assert len(changed) == height * width or len(changed) > 0.95 * height * width


def test_mixup_blends_and_cutmix_pastes_by_the_share_of_the_labels() -> None:
    first = {"pixels": torch.full((3, 16, 16), 200, dtype=torch.uint8), "label": torch.tensor(0)}
    second = {"pixels": torch.zeros(3, 16, 16, dtype=torch.uint8), "label": torch.tensor(1)}
    for seed in range(50):
        blended = Mixing(0.8, 0.0)(first, second, generator(seed))
        share = float(blended["share"])
        assert blended["pixels"].unique().tolist() == [round(200 * share)]
        pasted = Mixing(0.0, 1.0)(first, second, generator(seed))
        assert float((pasted["pixels"] == 200).double().mean()) == pytest.approx(float(pasted["share"]), abs=1e-6)
        assert (int(pasted["label"]), int(pasted["other_label"])) == (0, 1)


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 2.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    drawn = generator(3)
    shares = np.array([sample_beta(alpha, drawn) for _ in range(3000)])
    assert shares.mean() == pytest.approx(0.5, abs=0.03)
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


def test_partners_are_those_of_the_whole_step_for_any_number_of_ranks() -> None:
    buckets = np.array([0, 0, 1, 0, 1, 0, 0, 2, 1, 0], dtype=np.int32)
    rows = np.arange(10)
    step = StepSamples(rows, rows * 7 + 1000, np.ones(10))

    def partners(world: int, size: int) -> dict[int, tuple[int, int]]:
        found = {}
        for rank in range(world):
            for each in micro_batches(step, buckets, rank, world, size, mixes=True):
                assert each.step_seed == 1000
                for row, weight, partner in zip(each.rows, each.weights, each.partners, strict=True):
                    if weight:
                        found[row] = partner
        return found

    alone = partners(1, 16)
    assert partners(3, 2) == alone
    assert sorted(row for row, _ in alone.values()) == list(range(10))
    assert all(
        buckets[row] == buckets[partner] and seed == partner * 7 + 1000 for row, (partner, seed) in alone.items()
    )
    assert [row for row, (partner, _) in alone.items() if row == partner] == [7], "it is alone in its bucket"


def test_counts_of_parts_add_up_and_padding_does_not_count() -> None:
    logits, labels = torch.randn(40, 7, generator=generator(1)), torch.arange(40) % 7
    counted = torch.arange(40) % 5 > 0
    whole = count(logits, labels, counted)
    parts = [count(logits[part], labels[part], counted[part]) for part in (slice(0, 13), slice(13, 40))]
    assert all(torch.equal(whole[name], parts[0][name] + parts[1][name]) for name in whole)
    values, by_class = accuracies(whole)
    right = (logits.argmax(1) == labels)[counted]
    assert values["accuracy"] == pytest.approx(float(right.double().mean()))
    top = (logits.topk(5).indices == labels[:, None]).any(1)[counted]
    assert values["top5_accuracy"] == pytest.approx(float(top.double().mean()))
    assert by_class[2] == pytest.approx(float(right[labels[counted] == 2].double().mean()))


def test_many_classes_are_counted_without_a_matrix() -> None:
    counts = count(torch.eye(1500)[:9], torch.tensor([*range(8), 0]), torch.ones(9, dtype=torch.bool))
    values, by_class = accuracies(counts)
    assert "matrix" not in counts
    assert values["accuracy"] == pytest.approx(8 / 9)
    assert by_class[0] == 0.5


def test_the_matrix_is_green_on_the_diagonal_and_red_elsewhere() -> None:
    drawn: Any = draw_matrix(np.array([[9, 0], [5, 5]]), ["a", "b"]).convert("RGB")
    pixels = [drawn.getpixel((120 + 38 + 40 * column, 120 + 38 + 40 * row)) for row in (0, 1) for column in (0, 1)]
    assert [max(range(3), key=pixel.__getitem__) if max(pixel) > 60 else -1 for pixel in pixels] == [1, -1, 0, 1]
    assert draw_matrix(np.ones((900, 900), dtype=np.int64), ["x"] * 900).size == (900, 900)


def test_networks_have_the_layers_and_weights_of_the_paper() -> None:
    """Table 6 of He et al. 2015: 0.27 M weights for 20 layers, 0.85 M for 56."""
    for depth, millions in ((20, 0.27), (56, 0.85)):
        network = build_network(f"cifar_resnet{depth}", 10, "batch", 16, pretrained=False)
        layers = [module for module in network.modules() if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear))]
        assert len(layers) == depth
        assert sum(weight.numel() for weight in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.006)
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match="6n"):
        build_network("cifar_resnet21", 10, "batch", 16, pretrained=False)
    with pytest.raises(ConfigError, match="starts from scratch"):
        build_network("cifar_resnet20", 10, "batch", 16, pretrained=True)
    with pytest.raises(ConfigError, match="timm"):
        build_network("no_such_network", 10, "batch", 16, pretrained=False)


@pytest.mark.parametrize(
    ("code", "part"),
    [
        (None, "a model of timm, which is not installed."),
        ("import torchvision_of_timm", "is installed, but needs torchvision_of_timm, which is not."),
        (
            "raise RuntimeError('operator torchvision::nms does not exist\\nmore')",
            "cannot be imported (RuntimeError: operator torchvision::nms does not exist).",
        ),
    ],
)
def test_a_timm_that_cannot_be_imported_is_one_sentence(
    code: str | None, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if code is None:
        monkeypatch.setitem(sys.modules, "timm", None)
    else:
        (tmp_path / "timm").mkdir()
        (tmp_path / "timm" / "__init__.py").write_text(code)
        monkeypatch.delitem(sys.modules, "timm", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        build_network("resnet18", 10, "batch", 16, pretrained=False)
    assert part in str(caught.value)
    assert f"pip install timm torchvision torch=={torch.__version__.partition('+')[0]}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_models_of_timm_get_the_classes_and_their_own_normalisation() -> None:
    pytest.importorskip("timm")
    network = build_network("resnet10t", 3, "batch", 16, pretrained=False)
    assert network(torch.randn(2, 3, 64, 64)).shape == (2, 3)
    assert head_name("resnet10t", network) == "fc"
    mean, std = normalization(network)
    assert mean == pytest.approx([123.675, 116.28, 103.53])
    assert std == pytest.approx([58.395, 57.12, 57.375])
    converted = with_sync_batch_norm(network.eval(), group_on_a_gpu())
    assert isinstance(converted.get_submodule("bn1"), torch.nn.SyncBatchNorm)
    with pytest.raises(ConfigError, match=r"Did you mean resnet10t\?"):
        build_network("resnet10tt", 3, "batch", 16, pretrained=False)

"""First settings for a data set: rules of thumb."""

from __future__ import annotations

import pytest

from modules.config import TrainConfig
from modules.run.suggestions import BatchMemory, ConceptData, fitting_resolution, suggest, with_suggestions

GIB = 2**30
SDXL = {
    "family": "stable_diffusion_xl",
    "base_model": "stabilityai/stable-diffusion-xl-base-1.0",
    "method": "lora",
}
FINE_TUNE = {**SDXL, "method": "fine_tune"}
CARD = BatchMemory(24 * GIB, 12 * GIB, 4 * GIB, 1024)


def suggested(
    images: tuple[int, ...],
    settings: dict[str, object],
    side: int = 1200,
    memory: BatchMemory | None = None,
    world_size: int = 1,
) -> dict[str, object]:
    """Path -> value, for concepts of so many images."""
    concepts = [{"path": f"folder{number}"} for number in range(len(images))]
    config = TrainConfig.model_validate({"concepts": concepts, **settings})
    data = [ConceptData(number, count, count, side, side) for number, count in enumerate(images)]
    found = suggest(config, data, memory=memory, world_size=world_size)
    assert all(each.reason.endswith(".") for each in found)
    with_suggestions(config, found)  # they are valid together
    return {each.path: each.value for each in found}


@pytest.mark.parametrize(
    ("family", "base_model", "side", "expected"),
    [
        ("pixel_diffusion", None, 64, 64),
        ("pixel_diffusion", None, 43.5, 40),
        ("pixel_diffusion", None, 3, 8),
        ("pixel_diffusion", None, 3000, 64),
        ("classifier", None, 500, 224),
        ("stable_diffusion", "stable-diffusion-v1-5/stable-diffusion-v1-5", 3000, 512),
        ("stable_diffusion", "stabilityai/stable-diffusion-2-1@main", 3000, 768),
        ("stable_diffusion_xl", "/my/model", 950, 1024),
        ("stable_diffusion_xl", None, 800, 768),
        ("flux", None, 64, 512),
        ("my_family.py", None, 64, 0),
    ],
)  # fmt: skip
def test_resolution_is_the_models_own_unless_images_are_smaller(
    family: str, base_model: str | None, side: float, expected: int
) -> None:
    assert fitting_resolution(family, base_model, side) == expected


@pytest.mark.parametrize(
    ("images", "settings", "expected"),
    [
        ((60,), SDXL, {"global_batch_size": 4, "epochs": 34, "learning_rate": 1e-4}),
        ((100_000,), SDXL, {"global_batch_size": 4, "epochs": 1}),
        ((3000,), SDXL, {"epochs": 5}),
        ((3000,), FINE_TUNE, {"global_batch_size": 16, "epochs": 10, "learning_rate": 1e-5}),
        ((3,), SDXL, {"global_batch_size": 2}),
        ((60,), {"family": "pixel_diffusion"}, {"global_batch_size": 32, "learning_rate": 1e-3}),
        ((60,), {**SDXL, "optimizer": "prodigy"}, {"learning_rate": 1.0}),
        ((60,), {**SDXL, "optimizer": "lion", "lora_algorithm": "lokr"}, {"learning_rate": 2e-4}),
        ((60,), {**SDXL, "optimizer": "sgd"}, {"learning_rate": None}),
        ((60,), {**SDXL, "max_steps": 100}, {"epochs": None}),
        ((60, 12), SDXL, {"concepts.0.repeats": None, "concepts.1.repeats": 5, "epochs": 20}),
        ((60, 3), SDXL, {"concepts.1.repeats": 10}),
        ((60, 50), SDXL, {"concepts.1.repeats": None}),
        ((), SDXL, {"resolution": None}),
        ((5,), SDXL, {"global_batch_size": 4, "epochs": 250}),  # of two steps, the second of one image
        ((5,), {**SDXL, "drop_last": True}, {"epochs": 500}),
        ((60,), {**SDXL, "gradient_accumulation_steps": 4}, {"global_batch_size": 4, "gradient_accumulation_steps": 1}),
        ((60,), SDXL, {"gradient_accumulation_steps": None}),
    ],
)  # fmt: skip
def test_rules(images: tuple[int, ...], settings: dict[str, object], expected: dict[str, object]) -> None:
    found = suggested(images, settings)
    assert {path: found.get(path) for path in expected} == expected


@pytest.mark.parametrize(
    ("settings", "side", "memory", "world_size", "expected"),
    [
        (SDXL, 1200, None, 1, None),
        (SDXL, 1200, CARD, 1, 2),
        (SDXL, 1200, CARD, 4, 1),
        (SDXL, 600, CARD, 1, 4),  # at 576 an image takes a third
        (SDXL, 1200, BatchMemory(8 * GIB, 12 * GIB, 5 * GIB, 1024), 1, 1),
        ({**SDXL, "batch_size": 16}, 1200, None, 2, 2),
        # no gradient is kept from batch to batch, so the batch is the step
        ({**FINE_TUNE, "fused_backward": True, "max_grad_norm": None}, 1200, CARD, 1, 2),
    ],
)  # fmt: skip
def test_batch_size_is_what_fits_of_the_share(
    settings: dict[str, object], side: int, memory: BatchMemory | None, world_size: int, expected: int | None
) -> None:
    assert suggested((500,), settings, side, memory, world_size).get("batch_size") == expected


def test_concepts_that_are_not_to_be_learned_do_not_count() -> None:
    concepts = [
        {"path": "a"},
        {"path": "b", "prior": True},
        {"path": "c", "kind": "test"},
        {"path": "d", "enabled": False},
    ]
    config = TrainConfig.model_validate({"concepts": concepts, **SDXL})
    data = [ConceptData(0, 60, 60, 1200, 1200), *(ConceptData(number, 9000, 9000, 8, 8) for number in (1, 2, 3))]
    found = {each.path: each.value for each in suggest(config, data)}
    assert (found["resolution"], found["epochs"]) == (1024, 34)
    assert not any(path.startswith("concepts") for path in found)


def test_what_the_user_has_set_is_the_basis_of_the_rest() -> None:
    config = TrainConfig.model_validate({"concepts": [{"path": "a"}], "global_batch_size": 30, **SDXL})
    data = [ConceptData(0, 60, 60, 1200, 1200)]
    found = {
        each.path: each.value for each in suggest(config, data, may_change=lambda path: path != "global_batch_size")
    }
    assert "global_batch_size" not in found
    assert found["epochs"] == 250  # of two steps

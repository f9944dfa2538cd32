"""Reasons and rules that several trainers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from modules.config.interval import Interval, Unit
from modules.importers.readers import boolean, integer, number, optional_number
from modules.importers.rules import Assignment, CombinedRule, UnsupportedValueError, Values
from modules.importers.translation import Translation

BOTH_WEIGHTINGS = "the other trainer multiplies both weightings; Tandem has one at a time: debiased is used"
BUCKETS = "Tandem derives its buckets from the resolution"
SHAPES = "its shapes are those nearest to each image; Tandem's are up to 25 that images share"
CAPTION_FILES = "write captions as .txt or metadata.jsonl: see docs/data.md"
FIRST_SAMPLES = "the first samples are generated after one interval"
FLOW = "set family_options.timestep_distribution and timestep_shift"
IMAGES_ONLY = "not imported: set frames, fps and clips for a family of videos, as in docs/data.md"
LORA = "Tandem's LoRA has no such setting"
LORA_INSTEAD = "Tandem trains a plain LoRA instead"
WHOLE_REFERENCES = "whole, in its own shape; there cropped to that of its image"
SCALE = "which matters to plain SGD and max_grad_norm only"
NO_DROPOUT = "Tandem has dropout of plain LoRA only"
MERGE_FIRST = (
    "merge it into the base model first: scripts/convert.py BASE OUTPUT --merge ADAPTER, and set base_model to OUTPUT"
)
MASKS = "put each mask next to its image: cat.jpg has cat-masklabel.png"
ON_WHITE = "transparent parts are white here, and have their hidden colours there"
METADATA = "set model_title, model_author and model_license"
MONITOR = "Tandem logs to TensorBoard and shows the run in its Monitor"
NO_FAMILY = "Tandem does not have this model family yet: choose another one"
NO_QUANTISATION = "set weights of a submodule in parts to int8 or nf4, for an adapter"
PLAIN_OPTIMIZER = "8-bit and other variants become the plain optimizer"
RESCALED = (
    "the signal-to-noise ratios there are those before the rescaling to zero terminal SNR, Tandem's those after it"
)
UPLOAD = "upload the result yourself"

SCHEDULES: Mapping[str, str] = {  # of diffusers
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_restarts": "cosine_with_restarts",
    "polynomial": "polynomial",
}
NO_SCHEDULE = "Tandem has no such schedule; set scheduler"

Keys = tuple[str, ...]


def max_steps(count: int, *keys: str) -> list[Assignment]:
    """A run that ends after a number of steps."""
    why = "high enough that max_steps ends the run"
    return [Assignment("max_steps", count, keys=keys), Assignment("epochs", 10_000, why, keys)]


def _caching(values: Values) -> list[Assignment]:
    given = [boolean(value) for value in values.values() if value is not None]
    return [Assignment("cache_latents", any(given))] if given else []


LATENTS = CombinedRule(
    {"cache_latents": None, "cache_latents_to_disk": None},
    "cache_latents",
    _caching,
    "on if either is; Tandem's cache is always on the disk. A file with neither is trained from the cache",
)


def interval(target: str, units: Mapping[str, Unit], why: str = "") -> CombinedRule:
    """An interval from the first of several settings that is above 0; `units` maps each to its unit."""

    def read(values: Values) -> list[Assignment]:
        given = {key: count for key in units if (count := optional_number(values[key]) or 0) > 0}
        if not given:
            return []
        key, *others = given
        whole = given[key] if units[key] == "minutes" else integer(values[key])
        one = f"Tandem has one interval, and that of {key} is used: set {target} if this one is shorter"
        found = [Assignment(target, str(Interval(whole, units[key])), why, (key,))]
        return [*found, *(Assignment("", why=one, keys=(other,)) for other in others)]

    return CombinedRule(dict.fromkeys(units), target, read, why)


def submodule(
    index: int, part: str, trained: bool, keys: Keys, rate: float | None = None, rate_keys: Keys = ()
) -> list[Assignment]:
    """Whether one submodule is trained, from the settings `keys`, and its learning rate if it has its own."""
    path = f"parts.{index}"
    found = [Assignment(f"{path}.part", part, keys=keys, quiet=True), Assignment(f"{path}.train", trained, keys=keys)]
    return [*found, Assignment(f"{path}.learning_rate", rate, keys=rate_keys)] if rate else found


def loss_weighting(
    gamma: str,
    debiased: str = "",
    is_debiased: Callable[[object], bool] = boolean,
    uses: Values = MappingProxyType({}),
    note: Callable[[Values, str], str] = lambda values, weighting: "",
) -> CombinedRule:
    """The weighting of losses: Min-SNR with `gamma`, or debiased estimation, which takes precedence.

    `note` says, from the settings in `uses` too, how "min_snr" or "debiased" differs in the other trainer.
    """

    def read(values: Values) -> list[Assignment]:
        path = "family_options.loss_weighting"
        strength = optional_number(values[gamma])
        if debiased and is_debiased(values[debiased]):
            off = "" if boolean(values[debiased]) else "it is on if the setting is there, whatever its value"
            why = "; ".join(filter(None, (off, note(values, "debiased"))))
            found = [Assignment(path, "debiased", why, (debiased,))]
            return [*found, Assignment("", why=BOTH_WEIGHTINGS, keys=(gamma,))] if strength else found
        if not strength:
            return []
        named = Assignment(path, "min_snr", note(values, "min_snr"), (gamma,))
        return [named, Assignment("family_options.min_snr_gamma", strength, keys=(gamma,))]

    keys = {gamma: None, **({debiased: None} if debiased else {})}
    return CombinedRule(keys, "family_options.loss_weighting, family_options.min_snr_gamma", read, uses=uses)


def rescaled_weights(zero_terminal_snr: str) -> Callable[[Values, str], str]:
    """A note of `loss_weighting`, for trainers that take the ratios before the rescaling to zero terminal SNR.

    At the last timestep of Stable Diffusion's schedule the ratio s is 0.0047, and Min-SNR's weight s / (s + 1).
    """

    def note(values: Values, weighting: str) -> str:
        if not boolean(values[zero_terminal_snr]):
            return ""
        last = ", so the last timestep weighs 0 instead of 0.0047" if weighting == "min_snr" else ""
        return f"{RESCALED}{last}"

    return note


def ema_change(decay: float, root: float, interval: int, trainer: str) -> str:
    """How averaging at every step, with the decay `root`, differs from averaging at every `interval`-th step.

    Everywhere the decay rises as (1 + s) / (10 + s) with the step s (OneTrainer: modules/module/EMAModule.py,
    SimpleTuner: helpers/training/ema.py). Until it is reached, the averaged weights lie back s / (1 + 9 / interval)
    steps on average there, and s / 10 here.
    """
    theirs, ours = (float(f"{max(0, 10 * each - 1) / max(1 - each, 1e-8):.2g}") for each in (decay, root))
    times = 10 / (1 + 9 / interval)
    return (
        f"Tandem averages at every step, with {decay:g}^(1/{interval}): the same once both decays are reached, after "
        f"about {ours:,.0f} steps here and {theirs:,.0f} there; until then {trainer}'s average reaches back up to "
        f"{times:.1f} times as far"
    )


def _huber(values: Values) -> list[Assignment]:
    name = str(values["loss_type"]).lower()
    target = {"l2": "mse", "huber": "huber", "smooth_l1": "smooth_l1"}.get(name)
    if target is None:
        raise UnsupportedValueError("Tandem has mse, huber and smooth_l1; set family_options.loss")
    if target == "mse":
        return []
    why = f"Tandem's loss is half as large, {SCALE}"
    if values["huber_schedule"] != "constant":
        why += ", and has the same delta at all noise levels"
    return [
        Assignment("family_options.loss", target, keys=("loss_type",)),
        Assignment("family_options.huber_delta", number(values["huber_c"]), why, ("huber_c", "huber_schedule")),
    ]


# The losses of diffusers' training scripts, which kohya's sd-scripts and SimpleTuner share.
HUBER = CombinedRule(
    {"loss_type": "l2", "huber_c": 0.1, "huber_schedule": "snr"},
    "family_options.loss, family_options.huber_delta",
    _huber,
    "2c(sqrt(d^2 + c^2) - c) there, a Huber loss half as large here, with the same delta at all noise levels",
)


def train_alpha_masks(translation: Translation, concept: str, more: Mapping[str, object]) -> None:
    """Where the concept at this prefix has `alpha_mask`, switch masked training on, as it is there, with `more` of its
    settings, unless it is on."""
    target = f"{concept}alpha_mask"
    entry = next((each for each in (*translation.imported, *translation.changed) if each.target == target), None)
    if entry is None or not entry.new_value or translation.data.get("masked_training"):
        return
    for name, value in {"masked_training": True, **more}.items():
        translation.add(replace(entry, target=name, new_value=value, why=""))

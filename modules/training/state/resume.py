"""What may change in the config of a resumed run: each setting's declaration says so (`resume`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from modules.checkpoint import StoredState, TrainingState
from modules.config import Change, ResumeError, SubmoduleSettings, TrainConfig, dump, find_changes
from modules.config.io.migrations import migrate
from modules.config.io.text_formats import Data
from modules.families._by_name import family_class
from modules.families._family import Family, read_options
from modules.training.methods.lora import adapter_names
from modules.training.methods.lora_from import read_lora_from, structure_digest
from modules.training.methods.submodules import trained_names
from modules.training.methods.training_adapter import adapter_digest, read_training_adapter
from modules.training.state.plan import InitialModel

LORA_FROM, CLASSES, ADAPTER = "lora_from", "classes", "training_adapter"  # among the digests of an InitialModel
PREDICTION = "prediction type"
HASHED_NUMBERS = 64  # of each tensor


def check_unchanged(config: TrainConfig, state: TrainingState | StoredState) -> str:
    """A warning about changed settings, or an empty string. Raises ResumeError if the backup is of another run."""
    previous = migrate(cast(Data, dict(state.config)), "the config of the backup")
    now = dump(config)
    kind = family_class(config.family)
    _check_family(config.family, str(previous.get("family", config.family)))
    found = find_changes(TrainConfig, previous, now)
    options = read_options(kind.Options, config.family_options).model_dump(mode="json")
    inside = find_changes(kind.Options, cast(Data, previous.get("family_options", {})), options)
    found += [Change(f"family_options.{one.path}", one.resume, one.before, one.now) for one in inside]
    if fixed := [one for one in found if one.resume == "fixed"]:
        raise _refused(fixed)
    _check_parts(config, previous, kind.submodules)
    warned = [str(one) for one in found if one.resume == "warn"]
    if not state.position.base and previous.get("base_model") != config.base_model:
        warned += [str(one) for one in found if one.path == "base_model"]
    if not warned:
        return ""
    return (
        f"Settings have changed since the backup: {', '.join(warned)}. The run continues with the new values, and not "
        "as it would have with the previous ones."
    )


def check_initial_model(family: Family, config: TrainConfig, previous: InitialModel) -> InitialModel:
    """What this run starts from, in place of `previous`; `family` has just been loaded, and nothing was added to it.

    A base model may have moved, or come in another format. Raises ResumeError if weights that no backup holds differ.
    """
    digests = {
        # a model's dtype is still that of its file, and training starts from fp32
        name: weight_digest(module, torch.float32 if module not in family.encoders.values() else None)
        for name, module in _not_in_backups(family, config)
    }
    if predicted := family.modelspec().get("prediction_type"):
        digests[PREDICTION] = f"{PREDICTION}:{predicted}"  # which a base model's scheduler says, not its weights
    if config.lora_from is not None:
        digests[LORA_FROM] = structure_digest(read_lora_from(family, config, adapter_names(family)))
    if config.training_adapter is not None:
        adapter = read_training_adapter(family, Path(config.training_adapter), adapter_names(family))
        digests[ADAPTER] = adapter_digest(adapter.items())
    if family.classes:
        digests[CLASSES] = hashlib.sha256("\0".join(family.classes).encode()).hexdigest()
    if previous.digests and previous.digests.get(CLASSES) != digests.get(CLASSES):
        raise ResumeError(
            f"resume: the images now have {len(family.classes)} classes, which are not those that this run started "
            "with, in number, names or order.",
            "Restore the names of the classes, or start a new run under another run_name with this one's model as "
            "base_model.",
        )
    if previous.digests and previous.digests.get(LORA_FROM) != digests.get(LORA_FROM):
        raise ResumeError(
            f"resume: lora_from is {config.lora_from!r}, whose layers, ranks and alphas are not those that this run "
            "started with.",
            "Give the file that it started from, wherever it is now, or start a new run under another run_name.",
        )
    if previous.digests and previous.digests.get(ADAPTER) != digests.get(ADAPTER):
        raise ResumeError(
            f"resume: training_adapter is {config.training_adapter!r}, which is not what this run started with.",
            "Give the file that it started with, wherever it is now, or start a new run under another run_name.",
        )
    other = [
        name
        for name, before in previous.digests.items()
        if name in digests and digests[name] != before and _format(digests[name]) == _format(before)
    ]
    if not other:
        return InitialModel(config.base_model, digests)
    names = f"its {' and '.join(other)} {'are' if len(other) > 1 else 'is'}"
    if config.base_model is not None and config.base_model == previous.base_model:
        raise ResumeError(
            f"resume: the base model {config.base_model!r} has been replaced since this run started: {names} not what "
            "the run was trained on.",
            "Put the former model back, or give it as base_model from where it is now; or start a new run.",
        )
    if config.base_model is None:
        raise ResumeError(
            f"resume: the model that training starts from has changed since the backup: {names} not what this run "
            "started with.",
            "Use the seed, the family and the family options of that run.",
        )
    raise ResumeError(
        f"resume: base_model is {config.base_model!r}, and {names} not what this run started with, which was "
        f"{previous.base_model!r}.",
        "Give that model, wherever it is now, or start a new run under another run_name.",
    )


@torch.no_grad()
def weight_digest(module: nn.Module, as_dtype: torch.dtype | None = None) -> str:
    """The dtype of a module's weights, and a hash over 64 numbers of each: fast for large models, too.

    `as_dtype` is the dtype that they will be converted to; None if they keep theirs.
    """
    digest, dtype = hashlib.blake2b(digest_size=12), ""
    for name, weight in sorted(module.named_parameters()):
        dtype = dtype or str(as_dtype or weight.dtype).removeprefix("torch.")
        flat = weight.detach().reshape(-1)
        picked = flat[:: max(1, flat.numel() // HASHED_NUMBERS)][:HASHED_NUMBERS].to("cpu", as_dtype).contiguous()
        digest.update(f"{name} {list(weight.shape)}\0".encode())
        digest.update(picked.view(torch.uint8).numpy().tobytes())
    return f"{dtype}:{digest.hexdigest()}"


def _not_in_backups(family: Family, config: TrainConfig) -> Iterable[tuple[str, nn.Module]]:
    """Modules whose weights no backup holds, because training does not change them: encoders and frozen submodules."""
    yield from family.encoders.items()
    if not family.submodules:
        if config.method != "fine_tune":
            yield "model", family.model
        return
    trained = trained_names(config, family.submodules) if config.method == "fine_tune" else ()
    for name, part in family.model.named_children():
        if name not in trained:
            yield name, part


def _format(digest: str) -> str:
    return digest.partition(":")[0]


def _check_family(now: str, before: str) -> None:
    """Raises ResumeError for another family; a family's Python file may have moved."""
    moved = now.endswith(".py") and Path(now).name == Path(before).name
    if now != before and not moved:
        raise _refused([Change("family", "fixed", before, now)])


def _check_parts(config: TrainConfig, previous: Mapping[str, object], parts: tuple[str, ...]) -> None:
    """Raises ResumeError unless the same submodules are trained, however the list names them."""
    try:
        entries = TypeAdapter(tuple[SubmoduleSettings, ...]).validate_python(previous.get("parts", ()))
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise ResumeError(f"resume: parts in the config of the backup is damaged ({reason}).") from None
    before = config.model_copy(update={"parts": entries})
    trained = [trained_names(each, parts) for each in (before, config)]
    if trained[0] != trained[1]:
        was, is_ = (", ".join(names) for names in trained)
        raise ResumeError(
            f"resume: parts selects {is_} for training, but the run of this backup trains {was}.",
            "Set parts back to continue, or start a new run under another run_name.",
        )


def _refused(fixed: list[Change]) -> ResumeError:
    """One sentence for each setting that cannot change in a resumed run."""
    sentences = [
        f"{one.path} is {_quoted(one.now)}, but the run of this backup has {_quoted(one.before)}" for one in fixed
    ]
    return ResumeError(
        f"resume: {'; '.join(sentences)}.",
        f"Set {'it' if len(fixed) == 1 else 'them'} back to continue, or start a new run under another run_name.",
    )


def _quoted(value: object) -> str:
    return repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)

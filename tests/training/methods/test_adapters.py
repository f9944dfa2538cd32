"""LoRA, DoRA, new words, and parts that are trained each in its own way."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from modules.config import ConfigError, TrainConfig, explain
from modules.data.loading.progress import Progress
from modules.distributed import Weights
from modules.facts import FamilyFacts
from modules.families.z_image import ZImage
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import load_family
from modules.training.methods.lora import lora_targets, max_useful_rank
from modules.training.methods.lora_files import has_kohya_names, layouts
from modules.training.methods.method import method_summary
from modules.training.methods.submodules import submodule_groups
from modules.training.methods.textual_inversion import TrainedRows
from modules.training.optim.optimizers import GuardedStep, build_optimizer, set_learning_rate
from tests.adapted_models import BOTH, CPU, LORA, assert_close, batch_of, ready, state_of, train_a_little
from tests.runs import ROOT, same_tensors

# What is trained


def test_only_the_adapter_is_trained() -> None:
    plain, _ = ready()
    for decompose in (False, True):
        family, _ = ready(**{**LORA, "parts": BOTH, "lora_weight_decompose": decompose})
        assert all(".lora_" in name for name in Weights(family.model).local)
        assert family.model.training
        assert_close(batch_of(1, family), batch_of(1, plain))


@pytest.mark.parametrize("decompose", [False, True])
def test_frozen_weights_never_change(decompose: bool) -> None:
    family, config = ready(**{**LORA, "parts": BOTH, "lora_weight_decompose": decompose, "learning_rate": 0.1})
    before = state_of(family.model)
    train_a_little(family, config)
    for name, tensor in family.model.state_dict().items():
        assert torch.equal(tensor, before[name]) is (".lora_" not in name), name


def test_first_values_follow_from_the_seed_and_the_name_alone() -> None:
    def first(**settings: object) -> dict[str, Tensor]:
        return {n: w.detach().clone() for n, w in Weights(ready(**{**LORA, **settings})[0].model).local.items()}

    before = torch.get_rng_state()
    few = first(lora_targets="to_q")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    every = first()
    assert len(few) == 2
    assert len(every) == 2 * 6
    assert same_tensors(few, {name: every[name] for name in few})
    assert not same_tensors(few, first(lora_targets="to_q", seed=43))
    exact = first(lora_targets="to_q", precision="fp64")
    assert all(torch.equal(weight.double(), exact[name]) for name, weight in few.items())


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("attention", {"unet.to_q", "unet.to_k", "unet.to_v"}),
        ("attention_mlp", {"unet.to_q", "unet.to_k", "unet.to_v", "text_encoder.fc1", "text_encoder.fc2"}),
        ("all_linear", {"unet.to_q", "unet.to_k", "unet.to_v", "unet.ff", "text_encoder.fc1", "text_encoder.fc2"}),
        ("second$, text_encoder.*1", {"unet.second", "text_encoder.fc1"}),
        ("c{1,2}1, to_[qk]", {"unet.to_q", "unet.to_k", "text_encoder.fc1"}),
    ],
)
def test_targets_by_preset_and_by_pattern(wanted: str, found: set[str]) -> None:
    parts = BOTH[:1] if wanted == "attention" else BOTH
    family, _ = ready(**{**LORA, "lora_targets": wanted, "parts": parts})
    assert {name.partition(".lora_")[0] for name in Weights(family.model).local} == found


def test_a_familys_own_facts_name_its_feed_forward_layers() -> None:
    family, config = ready(**{**LORA, "lora_targets": "attention_mlp", "parts": BOTH[:1]})
    model = load_family(config).model
    usual = set(lora_targets(model, family, config))

    class Own(type(family)):  # type: ignore[misc]
        facts = FamilyFacts("My model: an example.", feed_forward="ff|second")

    assert set(lora_targets(model, Own, config)) - usual == {"unet.ff"}, "linear layers only"
    without = config.model_copy(update={"lora_targets": "attention"})
    assert set(lora_targets(model, Own, without)) == {"unet.to_q", "unet.to_k", "unet.to_v"}


def test_a_submodule_without_layers_and_an_excess_rank() -> None:
    with pytest.raises(
        ConfigError, match=r"lora_targets is 'to_q', which matches none of the 2 layers of text_encoder that"
    ):
        ready(**{**LORA, "lora_targets": "to_q", "parts": BOTH})
    family, config = ready(**{**LORA, "lora_rank": 64})
    most = max_useful_rank(family)
    assert f"A rank above {most} adds nothing" in method_summary(family, config, Weights(family.model))
    family, config = ready(**LORA)
    assert "adds nothing" not in method_summary(family, config, Weights(family.model))


def test_layers_frozen_by_the_family_are_left_alone() -> None:
    options = {"family_options": {"frozen": "unet.to_v"}}
    family, _ = ready(**{**LORA, **options})
    assert not any(name.startswith("unet.to_v") for name in Weights(family.model).local)
    family, _ = ready(**options)
    assert {name for name in Weights(family.model).local if name.startswith("unet.to")} == {
        f"unet.to_{one}.{kind}" for one in "qk" for kind in ("weight", "bias")
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"lora_targets": "nothing"},
            r"whose pattern 'nothing' matches none of the 6 layers.*unet\.first, .*unet\.to_q",
        ),
        (
            {"lora_targets": "to_q", "parts": BOTH},
            r"matches none of the 2 layers.*text_encoder\.fc1, text_encoder\.fc2",
        ),
        ({"family": str(ROOT / "tests" / "tiny_family.py")}, "offers fine_tune"),
        ({"family": "pixel_diffusion", "lora_layouts": "kohya"}, "kohya's layout has no names for"),
        ({"parts": [{"part": "vae"}]}, r"parts\.0\.part is 'vae'; the family .* has unet, text_encoder"),
        ({"family": "pixel_diffusion", "parts": BOTH}, "has no submodules: all of it is trained. Leave parts empty"),
        (
            {"method": "embedding", "parts": [{"part": "unet"}, {"part": "text_encoder", "train": False}]},
            r"no part with a token table is trained; they are text_encoder\.",
        ),
    ],
)
def test_what_cannot_be_is_said_with_names(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ready(**{**LORA, **settings})


def test_a_transformer_that_tandem_has_no_names_for_is_saved_in_diffusers_layout() -> None:
    mine = type("Mine", (ZImage,), {"facts": replace(ZImage.facts, architecture="mine")})
    assert has_kohya_names(ZImage)
    assert not has_kohya_names(mine)
    assert layouts(mine, TrainConfig(method="lora")) == ["diffusers"]
    assert layouts(mine, TrainConfig(method="lora", lora_layouts="diffusers")) == ["diffusers"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"parts": [{"part": "a"}, {"part": "a"}]}, r"parts.1.part is 'a', which is already in the list"),
        ({"parts": [{"part": "a", "train": False}]}, "parts trains nothing"),
        ({"parts": [{"part": "a", "stop_after": "2 minutes"}]}, "parts.0.stop_after is 2 minutes; use steps or epochs"),
        (
            {"parts": [{"part": "a", "weights": "bf16"}]},
            "parts.0.weights is bf16, but precision is fp32; set it to run, which keeps these weights in the run's "
            "precision, or set precision to bf16 or fp16",
        ),
        (
            {"parts": [{"part": "a", "weights": "bf16"}], "precision": "bf16", "method": "fine_tune"},
            "fine_tune saves the whole model, which this would round",
        ),
        ({"lora_targets": "to_(q"}, r"'to_\(q' is not a valid regular expression \(missing \)"),
        (
            {"lora_targets": " , "},
            "use one of attention, attention_mlp, blocks, all_linear, all, kohya, kohya_conv, onetrainer, or patterns",
        ),
        ({"method": "embedding", "embedding_token": "my cat"}, "embedding_token is 'my cat'; give one word"),
    ],
)
def test_settings_that_do_not_fit_are_told(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate({"method": "lora", **settings})
    (sentence,) = explain(caught.value)
    assert re.search(said, sentence), sentence


# Number formats and memory


@pytest.mark.parametrize("format_", ["bf16", "fp16"])
def test_frozen_weights_may_be_cast_and_adapters_stay_exact(format_: str) -> None:
    parts = [{"part": "unet", "weights": format_}, {"part": "text_encoder", "train": False}]
    family, _ = ready(**{**LORA, "parts": parts, "precision": "bf16"})
    kept = {name: weight.dtype for name, weight in family.model.named_parameters()}
    small = {"bf16": torch.bfloat16, "fp16": torch.float16}[format_]
    assert {kept[f"unet.{name}.base_layer.weight"] for name in ("first", "to_q", "ff")} == {small}
    assert {dtype for name, dtype in kept.items() if ".lora_" in name or "norm" in name} == {torch.float32}
    assert kept["text_encoder.fc1.weight"] == torch.float32
    with Precision("bf16", CPU).autocast():
        loss = batch_of(1, family)
        loss.backward()
    exact, _ = ready(**{**LORA, "parts": BOTH[:1]})
    assert loss.item() == pytest.approx(batch_of(1, exact).item(), rel=0.02)
    assert all(weight.grad is not None for weight in Weights(family.model).local.values())


def test_checkpointing_keeps_gradients_with_frozen_inputs() -> None:
    gradients = []
    for recomputed in (False, True):
        family, config = ready(**{**LORA, "lora_targets": "unet.to_", "gradient_checkpointing": recomputed})
        train_a_little(family, config)
        family.model.zero_grad()
        batch_of(5, family).backward()
        gradients.append({n: w.grad for n, w in Weights(family.model).local.items() if w.grad is not None})
    assert len(gradients[0]) == 6
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients[0].values())
    assert all(torch.allclose(gradient, gradients[1][name]) for name, gradient in gradients[0].items())


# Parts


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion"])
def test_submodule_rates_and_stops_equal_a_loop_by_hand(optimizer: str) -> None:
    """Weight decay and momentum would move a frozen submodule; clipping must not count it."""
    parts = [{"part": "unet"}, {"part": "text_encoder", "learning_rate": 0.003, "stop_after": "3 steps"}]
    settings = {"parts": parts, "learning_rate": 0.01, "optimizer": {"name": optimizer, "weight_decay": 0.1}}
    family, config = ready(**settings)
    weights = Weights(family.model)
    groups = submodule_groups(family, config, weights.local)
    step = GuardedStep(
        build_optimizer([{"params": [weights.local[name] for name in group.weights]} for group in groups], config),
        weights,
        Precision("fp32", CPU).scaler,
        0.05,
    )
    twin, _ = ready(**settings)
    body, reader = (list(twin.model.get_submodule(name).parameters()) for name in ("unet", "text_encoder"))
    own = [build_optimizer(each, config) for each in (body, reader)]
    progress = Progress(0, 8, 4)
    for number in range(6):
        rate = 0.01 * (1 - number / 6)
        batch_of(number, family).backward()
        set_learning_rate(step.optimizer, rate, [group.learning_rate_factor for group in groups])
        step.apply([group.is_frozen(progress) for group in groups])
        progress = progress.after(4)

        batch_of(number, twin).backward()
        moving = [*body, *reader] if number < 3 else body
        nn.utils.clip_grad_norm_(moving, 0.05)
        own[0].param_groups[0]["lr"], own[1].param_groups[0]["lr"] = rate, rate * 0.003 / 0.01
        for each in own if number < 3 else own[:1]:
            each.step()
        twin.model.zero_grad()
        if number == 2:
            stopped = state_of(family.model.get_submodule("text_encoder"))
    assert same_tensors(stopped, state_of(family.model.get_submodule("text_encoder")))
    for name, weight in twin.model.state_dict().items():
        assert_close(weight, family.model.state_dict()[name])


def test_stop_after_epochs_is_the_same_on_any_number_of_ranks() -> None:
    family, config = ready(parts=[{"part": "unet", "stop_after": "1.5 epochs"}])
    (group,) = submodule_groups(family, config, Weights(family.model).local)
    passed = [group.is_frozen(Progress(seen, 40, 8)) for seen in (0, 40, 56, 60, 64)]
    assert passed == [False, False, False, True, True]


def test_with_everything_frozen_nothing_moves() -> None:
    family, config = ready(precision="fp16")
    step = GuardedStep(build_optimizer(family.model.parameters(), config), Weights(family.model),
                       Precision("fp16", CPU).scaler, 1.0)  # fmt: skip
    before = state_of(family.model)
    batch_of(1, family).backward()
    assert step.apply([True]) == 0
    assert same_tensors(before, state_of(family.model))


# New words


def test_only_the_new_rows_are_learned() -> None:
    family, config = ready(method="embedding", embedding_vectors=2, learning_rate=0.1)
    table = family.model.get_submodule("text_encoder.table")
    assert isinstance(table, TrainedRows)
    before = state_of(family.model)
    assert torch.equal(table.rows[0], before["text_encoder.table.table.weight"][0])
    weights = train_a_little(family, config)
    assert list(weights.local) == ["text_encoder.table.rows"]
    changed = {name for name, tensor in family.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"text_encoder.table.rows"}


def test_rows_that_are_not_trained_keep_their_values() -> None:
    table = nn.Embedding(9, 4)
    frozen = TrainedRows(table, [7, 2], trained=False)
    assert set(Weights(frozen).local) == {"table.weight"}
    assert set(frozen.state_dict()) == {"table.weight"}
    assert torch.equal(frozen(torch.arange(9)), table(torch.arange(9)))


def test_trained_rows_equal_a_table_with_gradients() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(9, 4)
    learned = TrainedRows(table, [7, 2])
    tokens = torch.tensor([[1, 7, 2, 7], [0, 8, 3, 2]])
    assert torch.equal(learned(tokens), table(tokens))
    factors = torch.randn(2, 4, 4)
    (learned(tokens) * factors).sum().backward()
    (table(tokens) * factors).sum().backward()
    assert table.weight.grad is not None
    assert learned.rows.grad is not None
    assert_close(learned.rows.grad, table.weight.grad[[7, 2]])

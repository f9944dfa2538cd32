"""The optimizers: each class holds its own settings and names its implementation. Adding one is one class here."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, Self, Union

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from modules.config.keywords import keywords_text, parse_keywords
from modules.config.section import Section, broken_rules, setting

Beta = Annotated[float, Field(ge=0, lt=1)]
PositiveBeta = Annotated[float, Field(gt=0, lt=1)]

# torch has its optimizers and their schedulers in torch.optim: what else it has is neither, whoever allows it
CLASS_NAME: Final = re.compile(r"(?!torch\.(?!optim\.))[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
KNOWN_CLASS: Final = re.compile(r"(torch\.optim|pytorch_optimizer|bitsandbytes\.optim)(\.[A-Za-z]\w*)+")
BETAS: Final = (
    "Decay rates of the running averages: first of the gradient (momentum), then of its square. Closer to 1 is "
    "smoother and slower to react."
)
betas_setting = partial(setting, title="Betas", help=BETAS, advanced=True, resume="warn")
eps_setting = partial(
    setting,
    title="Epsilon",
    help="A small number that keeps the optimizer from dividing by zero. Rarely worth changing.",
    advanced=True,
    gt=0,
    le=1,
    resume="warn",
)
weight_decay_setting = partial(
    setting,
    title="Weight decay",
    help="Pulls all weights slightly towards zero at every step, which reduces overfitting. 0 switches it off.",
    ge=0,
    le=10,
    resume="warn",
)
fused_setting = partial(
    setting,
    title="Fused optimizer step",
    help="Runs the whole update in one kernel: slightly faster, same result. It also skips a non-finite step without "
    "waiting for the GPU.",
    advanced=True,
)
foreach_setting = partial(
    setting,
    title="Foreach optimizer step",
    help="Without the fused step, GPUs update all weights at once instead of one after the other: faster, with memory "
    "for one more copy of what is trained. Same result.",
    advanced=True,
    depends_on="!fused",
)
clip_threshold_setting = partial(
    setting,
    title="Clip threshold",
    help="Scales down a step that would change the weights by more than this on average. Smaller is more careful.",
    advanced=True,
    gt=0,
    le=1000,
    resume="warn",
)


class Optimizer(Section):
    """An optimizer: its class and its keyword arguments.

    The docstring of a subclass describes it to users, in the help of the setting `optimizer`.
    """

    implementation: ClassVar[str] = ""
    # Whether each weight is updated from its own history alone, so that a tensor may be split across GPUs.
    is_elementwise: ClassVar[bool] = False
    # Whether a weight's step needs no other weight's gradient, so that weights can be updated one by one.
    per_parameter_step: ClassVar[bool] = True
    # Whether it estimates the step size: the learning rate is then a factor, which does not grow with the batch.
    finds_step_size: ClassVar[bool] = False

    name: str

    def class_path(self) -> str:
        """The implementing class as "module:Class"."""
        return self.implementation

    def keywords(self) -> dict[str, object]:
        """The keyword arguments for the class, without the parameters and the learning rate."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name != "name"}
        if given.get("foreach"):
            given["foreach"] = None  # torch decides by the device, and never where the step is fused
        return given


class AdamW(Optimizer):
    """Robust default; keeps two extra numbers per weight."""

    section_title: ClassVar[str] = "AdamW"
    implementation: ClassVar[str] = "torch.optim:AdamW"
    is_elementwise: ClassVar[bool] = True

    name: Literal["adamw"] = "adamw"
    betas: tuple[Beta, Beta] = betas_setting((0.9, 0.999))
    eps: float = eps_setting(1e-8)
    weight_decay: float = weight_decay_setting(0.01)
    fused: bool = fused_setting(True)
    foreach: bool = foreach_setting(True)


class AdamW8bit(Optimizer):
    """AdamW with a quarter of its memory; needs the package bitsandbytes."""

    section_title: ClassVar[str] = "AdamW, 8 bit"
    implementation: ClassVar[str] = "bitsandbytes.optim:AdamW8bit"

    name: Literal["adamw_8bit"] = "adamw_8bit"
    betas: tuple[Beta, Beta] = betas_setting((0.9, 0.999))
    eps: float = eps_setting(1e-8)
    weight_decay: float = weight_decay_setting(0.01)


class FlashAdamW(Optimizer):
    """AdamW with a quarter of its memory, on any device and without another package."""

    section_title: ClassVar[str] = "Flash AdamW"
    implementation: ClassVar[str] = "pytorch_optimizer:FlashAdamW"

    name: Literal["flash_adamw"] = "flash_adamw"
    betas: tuple[Beta, Beta] = betas_setting((0.9, 0.999))
    eps: float = eps_setting(1e-8)
    weight_decay: float = weight_decay_setting(0.01)


class ScheduleFreeAdamW(Optimizer):
    """Averages the weights instead of lowering the learning rate, which stays constant; the average is saved."""

    section_title: ClassVar[str] = "Schedule-free AdamW"
    implementation: ClassVar[str] = "pytorch_optimizer:ScheduleFreeAdamW"
    is_elementwise: ClassVar[bool] = True

    name: Literal["schedule_free_adamw"] = "schedule_free_adamw"
    betas: tuple[PositiveBeta, PositiveBeta] = betas_setting(
        (0.9, 0.999),
        help="How much of the weights at which gradients are taken is the average, and the decay rate of the squared "
        "gradient. 0.95 to 0.98 for the first suits long runs.",
    )
    eps: float = eps_setting(1e-8)
    weight_decay: float = weight_decay_setting(0.01)


class Adam(Optimizer):
    """Like AdamW, but weight decay is part of the gradient."""

    section_title: ClassVar[str] = "Adam"
    implementation: ClassVar[str] = "torch.optim:Adam"
    is_elementwise: ClassVar[bool] = True

    name: Literal["adam"] = "adam"
    betas: tuple[Beta, Beta] = betas_setting((0.9, 0.999))
    eps: float = eps_setting(1e-8)
    weight_decay: float = weight_decay_setting(0.0)
    fused: bool = fused_setting(True)
    foreach: bool = foreach_setting(True)


class SGD(Optimizer):
    """Plain gradient descent, for classifiers; little memory, needs a well-chosen learning rate."""

    section_title: ClassVar[str] = "SGD"
    implementation: ClassVar[str] = "torch.optim:SGD"
    is_elementwise: ClassVar[bool] = True

    name: Literal["sgd"] = "sgd"
    momentum: float = setting(
        0.9,
        title="Momentum",
        help="How much of the previous steps' direction is kept. 0.9 rolls through small bumps; 0 follows each "
        "gradient alone and saves memory.",
        ge=0,
        lt=1,
        resume="warn",
    )
    nesterov: bool = setting(
        False,
        title="Nesterov momentum",
        help="Looks one step ahead when applying the momentum; often slightly better at the same cost. Needs a "
        "momentum above 0.",
        advanced=True,
        depends_on="momentum",
        resume="warn",
    )
    weight_decay: float = weight_decay_setting(0.0)
    fused: bool = fused_setting(True)
    foreach: bool = foreach_setting(True)

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise broken_rules([("nesterov", "is true; it needs a momentum above 0, such as 0.9")])
        return self


class Adafactor(Optimizer):
    """Far less memory than AdamW: keeps statistics of rows and columns instead of every weight's history."""

    section_title: ClassVar[str] = "Adafactor"
    implementation: ClassVar[str] = "pytorch_optimizer:AdaFactor"

    name: Literal["adafactor"] = "adafactor"
    beta1: float | None = setting(
        None,
        title="Momentum (beta1)",
        help="How much of the previous direction is kept, such as 0.9; it is held in bf16, 2 bytes per weight. Empty: "
        "no momentum, which saves the most memory.",
        advanced=True,
        ge=0,
        lt=1,
        resume="fixed",
    )
    decay_rate: float = setting(
        -0.8,
        title="Decay rate",
        help="How fast old steps are forgotten over the run; closer to 0 forgets sooner. Rarely worth changing.",
        advanced=True,
        ge=-1,
        lt=0,
        resume="warn",
    )
    clip_threshold: float = clip_threshold_setting(1.0)
    scale_parameter: bool = setting(
        False,
        title="Scale parameter (step relative to the weights)",
        help="Makes the step of each layer proportional to the size of its weights, usually 0.001 to 0.03; the "
        "learning rate should then be higher, about 1e-3. Off: the learning rate is used as it is.",
        resume="warn",
    )
    weight_decay: float = weight_decay_setting(0.0)

    def keywords(self) -> dict[str, object]:
        """As in the base class; the built-in schedule stays off, because Tandem sets the learning rate."""
        given = super().keywords()
        betas = (given.pop("beta1"), 0.999)
        return {**given, "betas": betas, "relative_step": False, "warmup_init": False}


class Lion(Optimizer):
    """Half of AdamW's extra memory; needs about a fifth of its learning rate."""

    section_title: ClassVar[str] = "Lion"
    implementation: ClassVar[str] = "pytorch_optimizer:Lion"
    is_elementwise: ClassVar[bool] = True

    name: Literal["lion"] = "lion"
    betas: tuple[Beta, Beta] = betas_setting((0.9, 0.99))
    weight_decay: float = weight_decay_setting(0.0)


class Lion8bit(Optimizer):
    """Lion with a quarter of its memory; needs the package bitsandbytes."""

    section_title: ClassVar[str] = "Lion, 8 bit"
    implementation: ClassVar[str] = "bitsandbytes.optim:Lion8bit"

    name: Literal["lion_8bit"] = "lion_8bit"
    betas: tuple[Beta, Beta] = betas_setting((0.9, 0.99))
    weight_decay: float = weight_decay_setting(0.0)


class Muon(Optimizer):
    """Orthogonalises the steps of matrices, for full training; takes AdamW's learning rates."""

    section_title: ClassVar[str] = "Muon"
    implementation: ClassVar[str] = "modules.training.optim.muon:Muon"

    name: Literal["muon"] = "muon"
    momentum: float = setting(
        0.95,
        title="Momentum",
        help="How much of the previous steps' direction is kept in the steps of matrices.",
        ge=0,
        lt=1,
        resume="warn",
    )
    betas: tuple[Beta, Beta] = betas_setting((0.9, 0.999), help="Of AdamW, which trains biases and norms. " + BETAS)
    weight_decay: float = weight_decay_setting(0.1)


class Prodigy(Optimizer):
    """Finds the step size itself; set the learning rate to 1, and that of a part to its share, such as 0.5."""

    section_title: ClassVar[str] = "Prodigy"
    implementation: ClassVar[str] = "modules.training.optim.prodigy:Prodigy"
    finds_step_size: ClassVar[bool] = True
    per_parameter_step: ClassVar[bool] = False

    name: Literal["prodigy"] = "prodigy"
    betas: tuple[Beta, Beta] = betas_setting((0.9, 0.999))
    eps: float = eps_setting(1e-8)
    weight_decay: float = weight_decay_setting(0.0)
    d0: float = setting(
        1e-6,
        title="Initial step size (d0)",
        help="The step size it starts from before it has found its own. Larger starts faster and may be too much.",
        advanced=True,
        gt=0,
        le=1,
    )
    d_coef: float = setting(
        1.0,
        title="Step size coefficient (d_coef)",
        help="Multiplies the step size it finds: below 1 trains more carefully, above 1 more aggressively. The "
        "setting to try first.",
        gt=0,
        le=1000,
        resume="warn",
    )
    bias_correction: bool = setting(
        False,
        title="Bias correction",
        help="Corrects the running averages in the first steps, in which there is little history yet.",
        advanced=True,
        resume="warn",
    )
    safeguard_warmup: bool = setting(
        False,
        title="Safeguard warm-up",
        help="Keeps the step size it finds from growing too large during warm-up. Switch it on if you use warm-up "
        "steps.",
        advanced=True,
        resume="warn",
    )


class CAME(Optimizer):
    """Like Adafactor with momentum, usually more stable; saves memory in SDXL, but none in SD 1.5."""

    section_title: ClassVar[str] = "CAME"
    implementation: ClassVar[str] = "pytorch_optimizer:CAME"

    name: Literal["came"] = "came"
    betas: tuple[Beta, Beta, Beta] = betas_setting(
        (0.9, 0.999, 0.9999), help=BETAS + " The third is for how reliable the updates have been."
    )
    clip_threshold: float = clip_threshold_setting(1.0)
    weight_decay: float = weight_decay_setting(0.0)


class Custom(Optimizer):
    """Any class of torch.optim, pytorch_optimizer or bitsandbytes.optim, or what your own file or program builds."""

    section_title: ClassVar[str] = "Another class"
    per_parameter_step: ClassVar[bool] = False

    name: Literal["custom"] = "custom"
    target: str = setting(
        "",
        title="Class",
        help="A class of torch.optim, pytorch_optimizer or bitsandbytes.optim, such as torch.optim.Adagrad. One of "
        "another installed package runs after you have allowed its code. Empty: what build_optimizer of the family's "
        "own file returns, or the optimizer that a program gives to Trainer.",
        resume="fixed",
    )
    arguments: str = setting(
        "",
        title="Arguments",
        help="Its settings: NAME = VALUE, separated by commas, such as weight_decay = 0.01, betas = [0.9, 0.99]. The "
        "learning rate has a setting of its own. Empty: the defaults of the class.",
        depends_on="target",
        resume="warn",
    )

    def class_path(self) -> str:
        """As in the base class; empty for what is built elsewhere."""
        return ":".join(self.target.rsplit(".", 1))

    def keywords(self) -> dict[str, object]:
        """As in the base class."""
        return parse_keywords(self.arguments)

    @field_validator("arguments", mode="before")
    @classmethod
    def _arguments_as_text(cls, value: object) -> object:
        """Accept a mapping."""
        return keywords_text(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _class_and_arguments_are_known(self) -> Self:
        if self.target and not CLASS_NAME.fullmatch(self.target):
            fault = f"is {self.target!r}; give an optimizer's class with its module, such as torch.optim.Adagrad"
            raise broken_rules([("target", fault)])
        try:
            given = self.keywords()
        except ValueError as error:
            raise broken_rules([("arguments", f"is {self.arguments!r}, {error}")]) from None
        if given and not self.target:
            raise broken_rules([("arguments", f"is {self.arguments!r}, but target names no class that takes it")])
        if reserved := given.keys() & {"lr", "params"}:
            raise broken_rules([("arguments", f"has {min(reserved)}, which Tandem gives itself; set learning_rate")])
        return self


def with_name(value: object) -> object:
    """The settings of an optimizer that may be given by its name alone; a name with dots is that of a class, and a
    class without a name means a custom one."""
    if isinstance(value, str):
        return {"name": "custom", "target": value} if "." in value else {"name": value}
    return {"name": "custom", **value} if isinstance(value, dict) and "target" in value else value


def in_full(value: object) -> object:
    """As `with_name`; without name and target they are those of the default optimizer."""
    named = with_name(value)
    return {"name": AdamW().name, **named} if isinstance(named, dict) else named


def _name(value: object) -> object:
    return value.get("name") if isinstance(value, dict) else getattr(value, "name", None)


OPTIMIZERS: Final = {str(kind.model_fields["name"].default): kind for kind in Optimizer.__subclasses__()}

if TYPE_CHECKING:
    AnyOptimizer = Optimizer
else:
    # Discriminated by a function: pydantic's field discriminator forbids Section's number reading on the name field.
    AnyOptimizer = Annotated[
        Union[tuple(Annotated[kind, Tag(name)] for name, kind in OPTIMIZERS.items())],  # noqa: UP007
        Discriminator(_name),
    ]

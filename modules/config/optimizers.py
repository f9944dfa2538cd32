"""The optimizers: each carries only its own settings and names the class that implements it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from modules.config.section import Section, broken_rules, setting

Beta = Annotated[float, Field(ge=0, lt=1)]

BETAS = (
    "How long the optimizer remembers: first the direction of past steps, then how much they vary. Nearer "
    "to 1 is smoother and slower to react."
)
EPS = "A tiny number that keeps the optimizer from dividing by zero. Rarely worth changing."
WEIGHT_DECAY = (
    "Pulls all weights a little towards zero at every step, which works against learning by heart. 0 switches it off."
)
FUSED = (
    "Does the whole update in one piece of code: a little faster, same result. It also passes over a step that is not "
    "finite without waiting for the GPU."
)


class Optimizer(Section):
    """What every optimizer has: the implementing class as "module:Class" and its keyword arguments."""

    target: ClassVar[str]
    divisible: ClassVar[bool] = False  # whether each number changes by its own history alone, whatever is beside it

    def arguments(self) -> dict[str, object]:
        """The keyword arguments for the class in `target`, without the parameters and the learning rate."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "name"}


class AdamW(Optimizer):
    """Robust default; two extra numbers per weight."""

    section_title: ClassVar[str] = "AdamW"
    target: ClassVar[str] = "torch.optim:AdamW"
    divisible: ClassVar[bool] = True

    name: Literal["adamw"] = "adamw"
    betas: tuple[Beta, Beta] = setting((0.9, 0.999), title="Betas", help=BETAS, advanced=True, resume="told")
    eps: float = setting(1e-8, title="Epsilon", help=EPS, advanced=True, gt=0, le=1, resume="told")
    weight_decay: float = setting(0.01, title="Weight decay", help=WEIGHT_DECAY, ge=0, le=10, resume="told")
    fused: bool = setting(True, title="Fused update", help=FUSED, advanced=True)


class AdamW8bit(Optimizer):
    """AdamW with a quarter of its memory; needs the package bitsandbytes."""

    section_title: ClassVar[str] = "AdamW, 8 bits"
    target: ClassVar[str] = "bitsandbytes.optim:AdamW8bit"

    name: Literal["adamw_8bit"] = "adamw_8bit"
    betas: tuple[Beta, Beta] = setting((0.9, 0.999), title="Betas", help=BETAS, advanced=True, resume="told")
    eps: float = setting(1e-8, title="Epsilon", help=EPS, advanced=True, gt=0, le=1, resume="told")
    weight_decay: float = setting(0.01, title="Weight decay", help=WEIGHT_DECAY, ge=0, le=10, resume="told")


class Adam(Optimizer):
    """Like AdamW, but weight decay is part of the gradient."""

    section_title: ClassVar[str] = "Adam"
    target: ClassVar[str] = "torch.optim:Adam"
    divisible: ClassVar[bool] = True

    name: Literal["adam"] = "adam"
    betas: tuple[Beta, Beta] = setting((0.9, 0.999), title="Betas", help=BETAS, advanced=True, resume="told")
    eps: float = setting(1e-8, title="Epsilon", help=EPS, advanced=True, gt=0, le=1, resume="told")
    weight_decay: float = setting(0.0, title="Weight decay", help=WEIGHT_DECAY, ge=0, le=10, resume="told")
    fused: bool = setting(True, title="Fused update", help=FUSED, advanced=True)


class SGD(Optimizer):
    """The plain method; little memory, needs a well-chosen learning rate."""

    section_title: ClassVar[str] = "SGD"
    target: ClassVar[str] = "torch.optim:SGD"
    divisible: ClassVar[bool] = True

    name: Literal["sgd"] = "sgd"
    momentum: float = setting(
        0.9,
        title="Momentum",
        help="How much of the last step's direction is kept. 0.9 rolls through small bumps; 0 follows "
        "each step alone and saves memory.",
        ge=0,
        lt=1,
        resume="told",
    )
    nesterov: bool = setting(
        False,
        title="Nesterov momentum",
        help="Looks one step ahead when using the momentum; often a little better at the same cost. Needs "
        "a momentum above 0.",
        advanced=True,
        depends_on="momentum",
        resume="told",
    )
    weight_decay: float = setting(0.0, title="Weight decay", help=WEIGHT_DECAY, ge=0, le=10, resume="told")
    fused: bool = setting(True, title="Fused update", help=FUSED, advanced=True)

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise broken_rules([("nesterov", "is true; it needs a momentum above 0, such as 0.9")])
        return self


class Adafactor(Optimizer):
    """Much less memory than AdamW: it keeps rows and columns instead of every weight's history."""

    section_title: ClassVar[str] = "Adafactor"
    target: ClassVar[str] = "pytorch_optimizer:AdaFactor"

    name: Literal["adafactor"] = "adafactor"
    beta1: float | None = setting(
        None,
        title="Momentum",
        help="How much of the last direction is kept, such as 0.9. Empty uses none, which saves the most memory.",
        advanced=True,
        ge=0,
        lt=1,
        resume="fixed",
    )
    decay_rate: float = setting(
        -0.8,
        title="Decay rate",
        help="How fast old steps are forgotten as the run goes on; nearer to 0 forgets sooner. Rarely worth changing.",
        advanced=True,
        ge=-1,
        lt=0,
        resume="told",
    )
    clip_threshold: float = setting(
        1.0,
        title="Update limit",
        help="Shrinks a step that would change the weights by more than this on average. Smaller is more careful.",
        advanced=True,
        gt=0,
        le=1000,
        resume="told",
    )
    scale_parameter: bool = setting(
        True,
        title="Scale by weight size",
        help="Makes the step of each layer proportional to the size of its weights; the learning rate is "
        "then relative and wants to be larger, about 1e-3. Off: the learning rate is used as it stands.",
        resume="told",
    )
    weight_decay: float = setting(0.0, title="Weight decay", help=WEIGHT_DECAY, ge=0, le=10, resume="told")

    def arguments(self) -> dict[str, object]:
        """As the others; the learning rate is always ours, so the built-in schedule stays off."""
        given = super().arguments()
        betas = (given.pop("beta1"), 0.999)
        return {**given, "betas": betas, "relative_step": False, "warmup_init": False}


class Lion(Optimizer):
    """Half of AdamW's extra memory; wants a learning rate about a fifth of AdamW's."""

    section_title: ClassVar[str] = "Lion"
    target: ClassVar[str] = "pytorch_optimizer:Lion"
    divisible: ClassVar[bool] = True

    name: Literal["lion"] = "lion"
    betas: tuple[Beta, Beta] = setting((0.9, 0.99), title="Betas", help=BETAS, advanced=True, resume="told")
    weight_decay: float = setting(0.0, title="Weight decay", help=WEIGHT_DECAY, ge=0, le=10, resume="told")


class Prodigy(Optimizer):
    """Finds the step size by itself; set the learning rate to 1."""

    section_title: ClassVar[str] = "Prodigy"
    target: ClassVar[str] = "pytorch_optimizer:Prodigy"

    name: Literal["prodigy"] = "prodigy"
    betas: tuple[Beta, Beta] = setting((0.9, 0.999), title="Betas", help=BETAS, advanced=True, resume="told")
    eps: float = setting(1e-8, title="Epsilon", help=EPS, advanced=True, gt=0, le=1, resume="told")
    weight_decay: float = setting(0.0, title="Weight decay", help=WEIGHT_DECAY, ge=0, le=10, resume="told")
    d0: float = setting(
        1e-6,
        title="First step size",
        help="The step size it begins from before it has found its own. Larger starts faster and may be too much.",
        advanced=True,
        gt=0,
        le=1,
    )
    d_coef: float = setting(
        1.0,
        title="Step size factor",
        help="Multiplies the step size it finds: below 1 trains more carefully, above 1 harder. The "
        "setting to try first.",
        gt=0,
        le=1000,
        resume="told",
    )
    bias_correction: bool = setting(
        False,
        title="Bias correction",
        help="Corrects the first steps, in which the optimizer has little to remember yet.",
        advanced=True,
        resume="told",
    )
    safeguard_warmup: bool = setting(
        False,
        title="Safe with warm-up",
        help="Keeps the step size it finds from growing too large during warm-up. Switch it on when you "
        "use warm-up steps.",
        advanced=True,
        resume="told",
    )


class CAME(Optimizer):
    """As little memory as Adafactor, usually steadier."""

    section_title: ClassVar[str] = "CAME"
    target: ClassVar[str] = "pytorch_optimizer:CAME"

    name: Literal["came"] = "came"
    betas: tuple[Beta, Beta, Beta] = setting(
        (0.9, 0.999, 0.9999),
        title="Betas",
        help=BETAS + " The third is for how reliable the steps have been.",
        advanced=True,
        resume="told",
    )
    clip_threshold: float = setting(
        1.0,
        title="Update limit",
        help="Shrinks a step that would change the weights by more than this on average. Smaller is more careful.",
        advanced=True,
        gt=0,
        le=1000,
        resume="told",
    )
    weight_decay: float = setting(0.0, title="Weight decay", help=WEIGHT_DECAY, ge=0, le=10, resume="told")


def _name(value: object) -> object:
    return value.get("name") if isinstance(value, dict) else getattr(value, "name", None)


# Told apart by a function: pydantic's own way forbids Section's number reading on the name field.
AnyOptimizer = Annotated[
    Annotated[AdamW, Tag("adamw")]
    | Annotated[AdamW8bit, Tag("adamw_8bit")]
    | Annotated[Adam, Tag("adam")]
    | Annotated[SGD, Tag("sgd")]
    | Annotated[Adafactor, Tag("adafactor")]
    | Annotated[Lion, Tag("lion")]
    | Annotated[Prodigy, Tag("prodigy")]
    | Annotated[CAME, Tag("came")],
    Discriminator(_name),
]

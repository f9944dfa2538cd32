"""Dropout whose masks depend on the sample alone, not on who else is in its micro-batch or on which rank.

torch draws one mask for a whole tensor, so a sample would get another mask in a micro-batch of another size. Here each
sample's rows of a tensor get a mask of their own, drawn from hash(call seed, sample seed). Call seeds come from torch's
default CPU generator, which the step seeds: only the order of calls tells them apart, and gradient checkpointing, which
restores that generator, drops the same again when it recomputes.

nn.Dropout, its relatives, peft and attention all call functions of torch.nn.functional, which are exchanged there while
a micro-batch is computed: its backward included, where a forward may be computed again. torch.compile knows functions
by identity, so with it layers are exchanged instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DataParallel

from modules.data.random_state import seed_numpy_and_python
from modules.monitoring import Report
from modules.torch_compat import in_backward

MAX_SEED = 2**62
MIN_ATTENTION_DIMS = 3  # [batch, tokens, features]
NOT_PER_SAMPLE = (
    "While training, this model draws random numbers that are not drawn for each sample: the result depends on "
    "batch_size and on the number of GPUs. Use nn.Dropout or torch.nn.functional.dropout on tensors whose first "
    "dimension is the batch, and draw other random numbers in the family's sample_transform."
)
# The functions that torch itself draws in: they are called for each sample.
DROP_CHANNELS: Mapping[str, Callable[..., Tensor]] = {
    name: getattr(functional, name)
    for name in ("dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
}
DROPOUT = functional.dropout
ATTENTION = functional.scaled_dot_product_attention


class PerSampleDropout:
    """Makes dropout in `model` a function of each sample's seed, while `of` is entered.

    Whatever else is random in the model is warned of once. With `compiled` only nn.Dropout layers are covered.
    """

    def __init__(self, model: nn.Module, device: torch.device, report: Report, *, compiled: bool) -> None:
        self._device = device
        self._report = report
        self._compiled = compiled
        self._masks = SampleMasks()
        self._functions = {} if compiled else _functions(self._masks)
        self._is_first = True
        self._has_warned = False
        if isinstance(model, DataParallel) and len(model.device_ids) > 1:
            self._functions = {}  # its threads would draw call seeds in any order
        elif compiled:
            _exchange_layers(model, self._masks)

    @contextmanager
    def of(self, seeds: Tensor, step: int) -> Iterator[None]:
        """Around forward and backward of samples with `seeds` int64 [B], in the step after `step` steps."""
        first = int(seeds.tolist()[0])
        seed_generators(step, first)
        seed_numpy_and_python(combine(step, first))  # a loss may mix samples by np.random.beta
        self._masks.start(seeds)
        before = {name: getattr(functional, name) for name in self._functions}
        try:
            _set_functions(self._functions)
            yield
        finally:
            _set_functions(before)
            self._masks.stop()
        is_random = self._masks.has_misfits or (self._is_first and self._drew_otherwise(step))
        self._is_first = False
        if is_random and not self._has_warned:
            self._has_warned = True
            self._report.warning(NOT_PER_SAMPLE)

    def _drew_otherwise(self, step: int) -> bool:
        """Whether torch's generators are not where the call seeds have left them."""
        if self._device.type == "cuda":
            return torch.cuda.default_generators[torch.cuda.current_device()].get_offset() != 0
        if self._compiled:
            return False  # compiled code draws call seeds in its own way
        expected = torch.Generator().manual_seed(step)
        for _ in range(self._masks.calls):
            draw_call_seed(expected)
        return expected.get_state().tolist() != torch.default_generator.get_state().tolist()


class SampleMasks:
    """The masks of the micro-batch that is being computed."""

    def __init__(self) -> None:
        self.seeds: Tensor | None = None  # int64 [B], on the CPU
        self.calls = 0  # of dropout in the forward
        self.has_misfits = False  # whether a tensor's rows could not be divided among the samples

    def start(self, seeds: Tensor) -> None:
        """The samples whose rows are dropped from now on."""
        self.seeds, self.calls = seeds, 0

    def stop(self) -> None:
        """From now on dropout is torch's own."""
        self.seeds = None

    def fit(self, x: Tensor) -> bool:
        """Whether x [B * N, ...] has N rows for each sample, one sample after the other."""
        if self.seeds is None:
            return False
        fits = x.dim() > 0 and len(x) > 0 and len(x) % len(self.seeds) == 0
        self.has_misfits = self.has_misfits or not fits
        return fits

    def next_call(self) -> Tensor:
        """The seed of the next call, int64 [1]."""
        if torch.compiler.is_compiling():
            return torch.randint(MAX_SEED, (1,))
        self.calls += not in_backward()  # not if a backward recomputes
        return draw_call_seed(torch.default_generator)

    def dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """torch.nn.functional.dropout for [B * N, ...]: zero with probability p, the others divided by 1 - p."""
        if not training or not 0 < p < 1 or not self.fit(input):
            return DROPOUT(input, p, training, inplace)
        assert self.seeds is not None
        draw = compiled_mask if torch.compiler.is_compiling() else draw_mask
        dropped = draw(input.shape, input.device, p, self.seeds, self.next_call())
        scaled = input.mul_(1 / (1 - p)) if inplace else input * (1 / (1 - p))
        return scaled.masked_fill_(dropped, 0)

    def drop_channels(self, name: str, *args: Any, **kwargs: Any) -> Tensor:
        """The function of DROP_CHANNELS, sample by sample."""
        function = DROP_CHANNELS[name]
        bound = signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if not given["training"] or given["p"] == 0 or not self.fit(given["input"]):
            return function(*args, **kwargs)
        return self._sample_by_sample(function, given["input"], args, kwargs)

    def attention(self, *args: Any, **kwargs: Any) -> Tensor:
        """torch.nn.functional.scaled_dot_product_attention, with dropout sample by sample."""
        rate = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
        query: Tensor = args[0] if args else kwargs["query"]
        if rate == 0:
            return ATTENTION(*args, **kwargs)
        if query.dim() < MIN_ATTENTION_DIMS:  # one sequence, whose rows attend to each other
            self.has_misfits = True
            return ATTENTION(*args, **kwargs)
        return self._sample_by_sample(ATTENTION, query, args, kwargs) if self.fit(query) else ATTENTION(*args, **kwargs)

    def _sample_by_sample(
        self, function: Callable[..., Tensor], x: Tensor, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Tensor:
        """The results of `function` for the rows of each sample of x [B * N, ...]; torch draws, from its seed."""
        assert self.seeds is not None
        rows = len(x) // len(self.seeds)
        (call,) = self.next_call().tolist()

        def part(value: Any, number: int) -> Any:
            is_batched = isinstance(value, Tensor) and value.dim() == x.dim() and len(value) == len(x)
            return value[number * rows : (number + 1) * rows] if is_batched else value

        results = []
        with torch.random.fork_rng([x.device.index] if x.device.type == "cuda" else []):
            for number, seed in enumerate(self.seeds.tolist()):
                seed_generators(combine(call, seed), combine(call, seed))
                named = {name: part(value, number) for name, value in kwargs.items()}
                results.append(function(*(part(value, number) for value in args), **named))
        return torch.cat(results)


class SampleDropout(nn.Dropout):
    """nn.Dropout with a mask of its own for each sample."""

    masks: SampleMasks

    def forward(self, input: Tensor) -> Tensor:
        """[B * N, ...] to the same shape."""
        return self.masks.dropout(input, self.p, self.training, self.inplace)


def seed_generators(cpu: int, cuda: int) -> None:
    """torch.manual_seed for the CPU and for CUDA; torch's takes 170 us without a GPU, as it records the call stack."""
    torch.default_generator.manual_seed(cpu)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(cuda)


def draw_call_seed(generator: torch.Generator) -> Tensor:
    """A random number that tells one call of dropout from the others, int64 [1]."""
    return torch.randint(MAX_SEED, (1,), generator=generator)


def draw_mask(shape: Sequence[int], device: torch.device, p: float, seeds: Tensor, call: Tensor) -> Tensor:
    """bool [B * N, ...], each true with probability p: N rows for each seed.

    Drawn from `seeds` int64 [B] and `call` int64 [1]. On one kind of device equal arguments give equal masks.
    """
    mask = torch.empty(shape, dtype=torch.bool, device=device)
    generator = torch.Generator(device)
    (number,) = call.tolist()
    for rows, seed in zip(mask.chunk(len(seeds)), seeds.tolist(), strict=True):
        rows.bernoulli_(p, generator=generator.manual_seed(combine(number, seed)))
    return mask


def combine(first: int, second: int) -> int:
    """A hash of two seeds, 63 bits, by splitmix64's finaliser (Steele et al. 2014, doi:10.1145/2660193.2660195)."""
    mask = 2**64 - 1
    z = (first * 0x9E3779B97F4A7C15 + second) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1


# One operator for torch.compile, which cannot look into generators. Its tensors are all that it depends on.
@torch.library.custom_op("tandem::sample_mask", mutates_args=())
def compiled_mask(shape: Sequence[int], device: torch.device, p: float, seeds: Tensor, call: Tensor) -> Tensor:
    """`draw_mask`."""
    return draw_mask(shape, device, p, seeds, call)


@compiled_mask.register_fake
def _(shape: Sequence[int], device: torch.device, p: float, seeds: Tensor, call: Tensor) -> Tensor:
    return torch.empty(shape, dtype=torch.bool, device=device)


def _functions(masks: SampleMasks) -> dict[str, Callable[..., Tensor]]:
    """What replaces the functions of torch.nn.functional, by name."""
    by_channel = {name: partial(masks.drop_channels, name) for name in DROP_CHANNELS}
    return {"dropout": masks.dropout, "scaled_dot_product_attention": masks.attention, **by_channel}


def _exchange_layers(model: nn.Module, masks: SampleMasks) -> None:
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = SampleDropout
            module.masks = masks  # type: ignore[assignment]


def _set_functions(functions: Mapping[str, Callable[..., Tensor]]) -> None:
    for name, function in functions.items():
        setattr(functional, name, function)

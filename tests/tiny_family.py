"""A family of a few hundred weights for the tests of the trainer, named by its path; its options inject faults.

A fault is "KIND:RANK:CALL", for example "out_of_memory:1:5": the fifth training loss that rank 1 computes. Kinds:
the names in `FAULTS`, and nan. "nan:0:5+" means from the fifth on. A fault happens after the forward; the prefix
"forward_" puts it inside the forward, behind BatchNorm, "backward_" inside the backward, when the gradients of some
weights are complete. Kinds with the prefix "loader_" happen in the sample transform, where CALL counts the samples of
one process. "FIRST:error:1:5" happens only before torchrun's first restart. "fits:1:2": rank 1 runs out of memory in
the backward of more than two samples, "fits_sample:1:700" in samples of more than 700 pixels, and "fits_validation:1:2"
in the validation of more than two.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import torch
import torch.distributed as dist
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modules.config import Section, TrainConfig, setting
from modules.data.batch import Batch, Example
from modules.families._family import Family, SampleRequest


class Options(Section):
    """Faults, and layers that make a difference to resuming and to parity."""

    width: int = setting(6, title="Width", help="Channels.")
    dropout: float = setting(0.0, title="Dropout", help="Share that is dropped.")
    batch_norm: bool = setting(False, title="BatchNorm", help="Whether there is one.")
    faults: tuple[str, ...] = setting((), title="Faults", help="See the module.")
    record: str = setting("", title="Record", help="A folder for what each rank computes.")
    slow_encode_s: float = setting(0.0, title="Slow encoding", help="Seconds per image.")
    slow_step_s: float = setting(0.0, title="Slow steps", help="Seconds per micro-batch.")


class TinyNet(nn.Module):
    """Two convolutions."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, options.width, 3, padding=1)
        self.norm = nn.BatchNorm2d(options.width) if options.batch_norm else nn.Identity()
        self.drop = nn.Dropout(options.dropout)
        self.on_hidden: Callable[[Tensor], Tensor] | None = None  # where faults are injected
        self.second = nn.Conv2d(options.width, 3, 3, padding=1)
        self.recomputed = False

    def enable_gradient_checkpointing(self) -> None:
        """The switch that the trainer looks for."""
        self.recomputed = True

    def forward(self, x: Tensor) -> Tensor:
        """[B, 4, H, W] to [B, 3, H, W]."""
        hidden: Tensor = checkpoint(self.inside, x, use_reentrant=False) if self.recomputed else self.inside(x)
        out: Tensor = self.second(hidden)
        return out

    def inside(self, x: Tensor) -> Tensor:
        """The first half."""
        hidden: Tensor = self.drop(torch.tanh(self.norm(self.first(x))))
        return hidden if self.on_hidden is None else self.on_hidden(hidden)


def draw(cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
    """Noise, a timestep, and the caption as a number."""
    pixels = cached["pixels"].to(torch.float32) / 127.5 - 1
    number = int.from_bytes(hashlib.sha256(caption.encode()).digest()[:4], "little")
    return {
        "pixels": pixels,
        "noise": torch.randn(pixels.shape, generator=generator),
        "timestep": torch.rand((), generator=generator),
        "caption": torch.tensor(number),
    }


class TinyFamily(Family):
    """Predicts the image behind the noise."""

    Options: ClassVar[type[Section]] = Options
    sample_transform = staticmethod(draw)

    def __init__(self, options: Options) -> None:
        self.options = options
        if any("loader_" in fault for fault in options.faults):
            self.sample_transform = partial(transform_with_faults, options.faults)  # type: ignore[misc]
        self.calls = Counter[str]()
        net = TinyNet(options)
        if any(fault.startswith(INSIDE) for fault in options.faults):
            net.on_hidden = partial(inside_faults, options.faults, self.calls)
        self.model: nn.Module = net
        self.encoders: dict[str, nn.Module] = {}

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """Weights from the seed, or from a folder that `export` wrote."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            family = cls(cls.Options.model_validate(dict(config.family_options)))
        if config.base_model is not None:
            family.model.load_state_dict(load_file(Path(config.base_model) / "weights.safetensors"))
        return family

    def fingerprint(self) -> str:
        """Only pixels are kept."""
        return "tiny 1"

    def encode(self, example: Example) -> dict[str, Tensor]:
        """Pixels as they are."""
        time.sleep(self.options.slow_encode_s)
        return {"pixels": example.pixels}

    def loss(self, batch: Batch) -> Tensor:
        """The error of each sample's predicted image, [B]."""
        if torch.is_grad_enabled():
            self.calls["loss"] += 1
            self._record(batch)
            time.sleep(self.options.slow_step_s)
        pixels, noise = batch.tensors["pixels"], batch.tensors["noise"]
        t = batch.tensors["timestep"].view(-1, 1, 1, 1)
        noisy = torch.cat([(1 - t) * pixels + t * noise, t.expand_as(pixels[:, :1])], dim=1)
        return (self.model(noisy) - pixels).square().mean(dim=(1, 2, 3)) * self._faults()

    @torch.no_grad()
    def sample(self, request: SampleRequest) -> Image.Image:
        """One pass over noise."""
        if request.prompt == "cannot be drawn":
            raise RuntimeError("this prompt cannot be drawn")
        if request.prompt == f"stop on rank {_rank()}":
            os.kill(os.getpid(), signal.SIGTERM)
        generator = torch.Generator().manual_seed(request.seed)
        noise = torch.randn(1, 4, request.height, request.width, generator=generator)
        weights = next(self.model.parameters())
        was_training = self.model.training
        self.model.eval()
        levels = ((self.model(noise.to(weights))[0].float().clamp(-1, 1) + 1) * 127.5).to(torch.uint8)
        self.model.train(was_training)
        return Image.fromarray(levels.permute(1, 2, 0).contiguous().numpy())

    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """One file."""
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "weights.safetensors")

    def _record(self, batch: Batch) -> None:
        if not self.options.record:
            return
        noise, captions = batch.tensors["noise"].double(), batch.tensors["caption"]
        weights = sum(float(weight.detach().double().sum()) for weight in self.model.parameters())
        with (Path(self.options.record) / f"rank-{_rank()}.jsonl").open("a") as file:
            for n in range(len(batch)):
                sample = [int(batch.ids[n]), int(batch.seeds[n]), float(noise[n].sum()), int(captions[n])]
                counts = bool(batch.weights[n] > 0)
                file.write(json.dumps([self.calls["loss"], counts, weights, *sample]) + "\n")

    def _faults(self) -> float:
        return _inject(self.options.faults, self.calls["loss"]) if torch.is_grad_enabled() else 1.0


def inside_faults(faults: tuple[str, ...], calls: Counter[str], hidden: Tensor) -> Tensor:
    """`hidden` [B, C, H, W] as it is, or a fault now or in its backward. It must not refer to the family: as a cycle
    that would keep gloo's connections open."""
    samples, pixels = len(hidden), hidden[0, 0].numel()
    if not torch.is_grad_enabled():
        over_limit(faults, "fits_validation", samples)
        over_limit(faults, "fits_sample", pixels)
        return hidden
    _inject(faults, calls["loss"], "forward_")
    result = FaultsInBackward.apply(hidden, faults, calls["loss"])  # type: ignore[no-untyped-call]
    assert isinstance(result, Tensor)
    return result


class FaultsInBackward(torch.autograd.Function):
    """The identity, with faults in its backward."""

    @staticmethod
    def forward(ctx, x, faults, calls):  # type: ignore[no-untyped-def]
        ctx.faults, ctx.calls = faults, calls
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        over_limit(ctx.faults, "fits", len(gradient))
        _inject(ctx.faults, ctx.calls, "backward_")
        return gradient, None, None


def over_limit(faults: tuple[str, ...], kind: str, amount: int) -> None:
    """Run out of memory if a fault of this kind lets this rank have less than `amount`."""
    for fault in faults:
        found, rank, limit = fault.split(":")[-3:]
        if found == kind and int(rank) == _rank() and amount > int(limit):
            out_of_memory()


INSIDE = ("forward_", "backward_", "fits")  # faults that happen inside the network
samples_transformed = 0


def transform_with_faults(
    faults: tuple[str, ...], cached: dict[str, Tensor], caption: str, generator: torch.Generator
) -> dict[str, Tensor]:
    """`draw`, with the faults of the loader."""
    global samples_transformed
    samples_transformed += 1
    _inject(tuple(fault.replace("loader_", "") for fault in faults if "loader_" in fault), samples_transformed)
    return draw(cached, caption, generator)


def _inject(faults: tuple[str, ...], calls: int, place: str = "") -> float:
    for fault in faults:
        if fault.startswith("FIRST:") and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            continue
        kind, rank, call = fault.removeprefix("FIRST:").split(":")
        if not kind.startswith(place) or kind.removeprefix(place).startswith(("loader_", *INSIDE)):
            continue
        kind = kind.removeprefix(place)
        first = int(call.rstrip("+"))
        if int(rank) == _rank() and (calls == first or (call.endswith("+") and calls > first)):
            if kind == "nan":
                return float("nan")
            if "TANDEM_TEST_STRUCK" in os.environ:
                Path(os.environ["TANDEM_TEST_STRUCK"]).touch()
            FAULTS[kind]()
    return 1.0


def out_of_memory() -> None:
    """As torch says it."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (as the test ordered).")


def error() -> None:
    """A programmer's mistake."""
    raise ValueError("a mistake in the family's own code")


def kill() -> None:
    """As the system does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    """Without an error."""
    os._exit(0)


def stop() -> None:
    """As Ctrl-Z, a debugger or a job scheduler does."""
    os.kill(os.getpid(), signal.SIGSTOP)


def slow() -> None:
    """As a GPU that is too hot, or a disk far away."""
    time.sleep(0.03)


def hang() -> None:
    """For longer than any test waits."""
    time.sleep(3600)


def other_size() -> None:
    """A collective where the others call one of another size."""
    dist.all_reduce(torch.ones(3))


def other_call() -> None:
    """Another collective than the others."""
    dist.barrier()


def other_group() -> None:
    """A collective of another group than the others."""
    dist.all_reduce(torch.ones(7), group=_control_group())


def kill_parent() -> None:
    """torchrun, the process that spawned this one, or a loader's rank."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


def stop_parent() -> None:
    """The same process as above, with the store in it."""
    os.kill(os.getppid(), signal.SIGSTOP)


def fill_disk() -> None:
    """To the last byte: the run folder's disk is the test's own."""
    folder = Path(os.environ["TANDEM_TEST_DISK"])
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    raise OSError(28, "No space left on device", str(folder / "x"))


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        out_of_memory,
        error,
        kill,
        leave,
        stop,
        slow,
        hang,
        other_size,
        other_call,
        other_group,
        kill_parent,
        stop_parent,
        fill_disk,
    )
}


def _control_group() -> dist.ProcessGroup:
    groups = dist.distributed_c10d._world.pg_map
    return next(group for group in groups if group is not dist.group.WORLD)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))

"""One process of benchmarks/trainer_overhead.py: the real trainer and a bare hand-written loop, alone or in turns.

python benchmarks/side_by_side.py turns|batches|trainer|bare --config FILE --run_folder DIR --result FILE ...
Under torchrun it is one rank of DistributedTrainer, and the bare loop is one rank of a DDP loop.
"""

from __future__ import annotations

import argparse
import copy
import io
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from modules.config import TrainConfig, load_config
from modules.data.batch import Batch
from modules.data.loading.loader import Loader
from modules.families._pixel_unet import PixelOptions, build_model
from modules.torch_compat import ddp_options

Times = dict[str, list[float]]  # wall and CPU seconds of every step


class BareLoop:
    """A hand-written loop for this model and these batches, tuned with everything that is known to make it fast."""

    def __init__(self, model: nn.Module, batches: Sequence[Batch], config: TrainConfig, world_size: int) -> None:
        self.batches = itertools.cycle(batches)
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=config.learning_rate, fused=True)
        self.max_norm = config.max_grad_norm
        self.ema = [p.detach().clone() for p in self.parameters] if config.ema else []
        self.decay = config.ema_decay
        self.model = model
        if world_size > 1:
            self.model = DistributedDataParallel(
                model,
                gradient_as_bucket_view=True,
                static_graph=True,
                **ddp_options(sync_buffers=False, batched_copy=False),
            )

    def step(self) -> None:
        """One optimizer step."""
        tensors = next(self.batches).tensors
        x_0, x_1, t = tensors["pixels"], tensors["noise"], tensors["timestep"]
        x_t = torch.lerp(x_0, x_1, t.view(-1, 1, 1, 1))
        loss = functional.mse_loss(self.model(x_t, t, tensors["tokens"]), x_1 - x_0)
        loss.backward()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.max_norm, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema:
            torch._foreach_lerp_(self.ema, [p.detach() for p in self.parameters], 1 - self.decay)


class Clock:
    """Wall and CPU time (of all threads of this process) of several loops that take turns."""

    def __init__(self, names: Sequence[str], warm_up: int) -> None:
        self.times: dict[str, Times] = {name: {"wall": [], "cpu": []} for name in names}
        self._warm_up = dict.fromkeys(names, warm_up)
        self.start()

    def start(self) -> None:
        """Start a turn."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, name: str) -> None:
        """A step of `name` is over, and the next turn starts."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        if self._warm_up[name]:
            self._warm_up[name] -= 1
        else:
            self.times[name]["wall"].append(wall)
            self.times[name]["cpu"].append(cpu)
        self.start()


class MemoryLoader(Loader):
    """The same batches every epoch, from memory."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._kept = batches

    def steps(self, epoch: int, first_step: int, number: int) -> Iterator[Batch]:
        """`number` batches from `first_step` on; every step is one batch."""
        return itertools.islice(itertools.cycle(self._kept), first_step, first_step + number)

    def close(self) -> None:
        """Nothing to close."""


def main() -> None:
    arguments = parser().parse_args()
    torch.set_num_threads(arguments.threads)
    config = load_config(arguments.config)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if arguments.mode == "bare":
        result = run_bare(config, arguments.batches, arguments.steps)
    else:
        result = run_trainer(config, arguments, world_size)
    if os.environ.get("RANK", "0") == "0":
        arguments.result.write_text(json.dumps(result))


def run_bare(config: TrainConfig, batches: Path, steps: int) -> dict[str, object]:
    """The bare loop alone, for its memory."""
    model = build_model(PixelOptions.model_validate(config.family_options))
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    loop = BareLoop(model, read_batches(batches), config, world_size=1)
    for _ in range(steps):
        loop.step()
    return {"peak_mib": peak_mib()}


def run_trainer(config: TrainConfig, arguments: argparse.Namespace, world_size: int) -> dict[str, object]:
    """The real trainer from start to end; in mode `turns` every step of it is followed by one of each bare loop."""
    from modules.distributed import read_rank_env
    from modules.monitoring import RunReport, SilentReport
    from modules.run import EventLog, RunFolder
    from modules.training.loop.distributed_trainer import DistributedTrainer
    from modules.training.loop.generic_trainer import GenericTrainer
    from modules.training.state.requests import Outcome
    from modules.training.worker import control_requests, join_ranks

    clock = Clock(["trainer", "bare", "bare again"], arguments.warm_up)
    others: dict[str, BareLoop] = {}
    peaks: dict[str, object] = {}

    class TimedTrainer(GenericTrainer):
        """The trainer as it is, timed between its steps."""

        def setup(self) -> None:
            super().setup()
            loader = self.components.data.loader
            if arguments.mode == "turns" or arguments.mode == "batches":
                batches = [batch.to(self.ranks.device) for batch in loader.epoch(0) if batch.is_last_of_step]
            if arguments.mode == "batches":
                write_batches(batches, arguments.batches)
            if arguments.mode == "turns":
                for name in ("bare", "bare again"):
                    model = copy.deepcopy(self.components.weights.model)
                    others[name] = BareLoop(model, batches, self.config, world_size)
            if not arguments.real_loader and arguments.mode != "batches":
                kept = batches if arguments.mode == "turns" else read_batches(arguments.batches)
                data = replace(self.components.data, loader=MemoryLoader(kept))
                self.components = replace(self.components, data=data)
            clock.start()

        def after_step(self) -> Outcome | None:
            outcome = super().after_step()
            clock.stop("trainer")
            for name, loop in others.items():
                loop.step()
                clock.stop(name)
            return outcome

        def train(self) -> Outcome:
            outcome = super().train()
            peaks["peak_mib"] = peak_mib()
            return outcome

    class TimedDistributedTrainer(TimedTrainer, DistributedTrainer):
        """One rank of it."""

    sys.stdout = Screen()
    folder = RunFolder(arguments.run_folder)
    rank_env = read_rank_env(os.environ)
    rank = 0 if rank_env is None else rank_env.rank
    report = RunReport(EventLog(folder.events_file), folder.tensorboard_dir) if rank == 0 else SilentReport()
    with join_ranks(config, folder, report, rank_env, None, supervised=True) as ranks:
        kind: Any = TimedTrainer if rank_env is None else TimedDistributedTrainer
        kind(config, folder, report, control_requests(config, folder, rank), ranks).run()
    report.close()
    return {"times": clock.times, **peaks, "peak_with_saving_mib": peak_mib()}


class Screen(io.StringIO):
    """A pseudo-terminal, so that the progress bar is rendered as on a real one."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def write_batches(batches: Sequence[Batch], file: Path) -> None:
    """All steps' batches of one micro-batch each."""
    tensors: dict[str, Tensor] = {}
    for number, batch in enumerate(batches):
        fields = {**batch.tensors, "ids": batch.ids, "seeds": batch.seeds, "sample_weights": batch.weights}
        tensors.update({f"{number}/{name}": tensor.contiguous() for name, tensor in fields.items()})
    save_file(tensors, file)


def read_batches(file: Path) -> list[Batch]:
    """What `write_batches` wrote."""
    tensors = load_file(file)
    batches = []
    for number in range(len({name.split("/")[0] for name in tensors})):
        own = {k.split("/")[1]: v for k, v in tensors.items() if k.split("/")[0] == str(number)}
        ids, seeds, weights = own.pop("ids"), own.pop("seeds"), own.pop("sample_weights")
        batches.append(Batch(own, ids, seeds, weights, is_last_of_step=True, step_samples=len(ids)))
    return batches


def peak_mib() -> float:
    """The most memory this process has held; not ru_maxrss, which starts at that of the parent process."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__)
    top.add_argument("mode", choices=("turns", "batches", "trainer", "bare"))
    top.add_argument("--config", type=Path, required=True)
    top.add_argument("--run_folder", type=Path, required=True)
    top.add_argument("--result", type=Path, required=True)
    top.add_argument("--batches", type=Path, help="a file of batches in memory, for the modes trainer and bare")
    top.add_argument("--real_loader", action="store_true", help="the trainer reads through its own loader")
    top.add_argument("--steps", type=int, default=20)
    top.add_argument("--warm_up", type=int, default=5)
    top.add_argument("--threads", type=int, default=1)
    return top


if __name__ == "__main__":
    main()

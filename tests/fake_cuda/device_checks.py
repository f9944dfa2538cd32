"""Whether the pretended GPU itself is as strict as a real one; see run_checks.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
import torch

from tests.fake_cuda.gpu import GARBAGE, GIB, Gpu

MIB: Final = 1 << 20


def check_devices(gpu: Gpu, place: Path) -> None:
    """What mixes devices raises, but for numbers and indices."""
    on_device, on_host = torch.ones(3, device="cuda"), torch.ones(3)
    assert (on_device + 1).device == torch.device("cuda", 0)
    assert (on_device + torch.tensor(1.0)).is_cuda
    assert on_device[torch.tensor([0])].is_cuda
    for mixed in (
        lambda: on_device + on_host,
        lambda: torch.stack([on_device, on_host]),
        lambda: on_device.copy_(on_host).addcmul_(on_device, on_host),
        lambda: torch.randn(3, device="cuda", generator=torch.Generator()),
    ):
        with pytest.raises(RuntimeError, match="Expected"):
            mixed()


def check_autograd(gpu: Gpu, place: Path) -> None:
    """Gradients, autocast, fused and grouped optimizers and the scaler compute what the CPU computes."""

    def trained(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 4)
        inputs = torch.rand(3, 4)
        layer, inputs = layer.to(device), inputs.to(device)
        for optimizer in (torch.optim.AdamW(layer.parameters(), fused=True), torch.optim.SGD(layer.parameters(), 0.1)):
            with torch.autocast(device, torch.bfloat16):
                loss = layer(inputs).square().sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimizer.step()
        return layer.weight.detach().cpu()

    torch.testing.assert_close(trained("cuda"), trained("cpu"))


def check_softmax_of_half(gpu: Gpu, place: Path) -> None:
    """In fp32, as CUDA computes it without a copy."""
    scores = torch.tensor([[0.0, 1.0, 2.0]])
    expected = torch.softmax(scores, -1)
    half = scores.half().cuda().requires_grad_()
    found = torch.softmax(half, -1, dtype=torch.float32)
    found[0, 0].backward()
    assert found.dtype == torch.float32
    assert half.grad is not None
    assert half.grad.dtype == torch.float16
    torch.testing.assert_close(found.detach().cpu(), expected)
    first = expected[0, 0]
    torch.testing.assert_close(
        half.grad.cpu().float()[0], first * (torch.tensor([1.0, 0.0, 0.0]) - expected[0]), atol=1e-3, rtol=1e-2
    )


def check_waits(gpu: Gpu, place: Path) -> None:
    """Each wait of the host is told with how much of the queue it leaves."""
    numbers = torch.ones(4, device="cuda")
    event = torch.cuda.Event()
    event.record()
    gpu.watch.forget()
    numbers = numbers + 1
    event.synchronize()
    assert [(wait.kind, wait.behind) for wait in gpu.watch.waits] == [("event.synchronize", 1)]
    for wait in (numbers[0].item, lambda: numbers[numbers > 0], numbers.cpu, numbers.nonzero, torch.cuda.synchronize):
        gpu.watch.forget()
        wait()
        assert gpu.watch.waits, wait
        assert all(each.behind == 0 for each in gpu.watch.waits)
    assert "device_checks.py" in gpu.watch.waits[0].line


def check_copies_to_the_host(gpu: Gpu, place: Path) -> None:
    """They hold garbage until the host has waited."""
    for wait in ("event", "stream", "device"):
        pinned = torch.empty(4, pin_memory=True)
        pinned.copy_(torch.ones(4, device="cuda"), non_blocking=True)
        event = torch.cuda.current_stream().record_event()
        assert set(pinned.view(torch.uint8).tolist()) == {GARBAGE}
        {"event": event, "stream": torch.cuda.current_stream(), "device": torch.cuda}[wait].synchronize()
        assert pinned.tolist() == [1.0] * 4
    assert not gpu.watch.findings
    torch.empty(4).copy_(torch.ones(4, device="cuda"), non_blocking=True)
    assert "pageable host memory" in next(iter(gpu.watch.findings))


def check_pinned_memory_that_changes(gpu: Gpu, place: Path) -> None:
    """It is a finding if that happens before the copy from it was waited for."""
    pinned = torch.zeros(4, pin_memory=True)
    pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    pinned.fill_(1)
    pinned.to("cuda", non_blocking=True)
    assert not gpu.watch.findings
    pinned.fill_(2)
    torch.cuda.synchronize()
    assert "pinned memory was written" in next(iter(gpu.watch.findings))


def check_events(gpu: Gpu, place: Path) -> None:
    """Their time can be read only after a wait."""
    first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    second.record()
    with pytest.raises(RuntimeError, match="not ready"):
        first.elapsed_time(second)
    second.synchronize()
    assert first.elapsed_time(second) >= 0


def check_races(gpu: Gpu, place: Path) -> None:
    """One stream writes what another reads: found without a wait between them, not with it."""
    gpu.look_for_races(True)
    try:
        shared, other = torch.zeros(4, device="cuda"), torch.cuda.Stream()
        for waits in (True, False):
            shared.add_(1)
            if waits:
                other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                shared.mul(2)
            torch.cuda.current_stream().wait_stream(other)
            assert bool(gpu.watch.findings) is not waits
    finally:
        gpu.look_for_races(False)


def check_generators(gpu: Gpu, place: Path) -> None:
    """A seed gives the same numbers; draws advance an offset; those without a seed of their own are told."""
    generator = torch.Generator("cuda").manual_seed(3)
    numbers = torch.randn(4, device="cuda", generator=generator)
    assert generator.get_offset() > 0
    assert torch.equal(numbers, torch.randn(4, device="cuda", generator=torch.Generator("cuda").manual_seed(3)))
    gpu.watch.forget()
    with torch.random.fork_rng([0]):
        torch.cuda.manual_seed(3)
        assert torch.equal(numbers, torch.randn(4, device="cuda"))
    assert sum(gpu.watch.draws.values()) == 1


def check_memory_counters(gpu: Gpu, place: Path) -> None:
    """As those of torch's allocator: views take nothing, what is freed stays reserved until the cache is emptied."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    free, total = torch.cuda.mem_get_info()
    block = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    views = [block[:100], block.view(torch.float32), block.reshape(8, -1).t(), block.unfold(0, 2, 1)]
    assert torch.cuda.memory_allocated() == before + 8 * MIB
    del block, views
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() == before + 8 * MIB
    assert torch.cuda.memory_reserved() >= 8 * MIB
    assert torch.cuda.mem_get_info() == (free + reserved - torch.cuda.memory_reserved(), total)
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == free
    result = torch.ones(MIB, device="cuda") + 1  # that of an operator counts as well
    assert torch.cuda.memory_allocated() == before + result.nbytes


def check_out_of_memory(gpu: Gpu, place: Path) -> None:
    """Raised at the total, and at the share that a process may take; what is freed can be taken again."""
    gpu.set_total(2 * GIB)
    try:
        most = 3 * GIB // 4  # of what other programs leave
        kept = torch.empty(most, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.empty(most, dtype=torch.uint8, device="cuda")
        torch.cuda.set_per_process_memory_fraction(0.1)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.set_per_process_memory_fraction(1.0)
        del kept
        torch.empty(most, dtype=torch.uint8, device="cuda")
    finally:
        gpu.set_total(gpu.card.total_bytes)


CHECKS: Final[Mapping[str, Callable[[Gpu, Path], None]]] = {
    name.removeprefix("check_").replace("_", " "): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}

"""The results of a benchmark as a picture: scaling over ranks, and throughput over batch sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from modules.run.benchmark.records import BenchmarkResult, CaseResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DARK = ("#1D2026", "#E9EBEF")  # background and foreground
COLOURS = ("#2f6fdd", "#d9622b", "#16815a", "#8a4fd0", "#b7386b", "#7a7a85")


def save_plot(result: BenchmarkResult, file: Path, *, dark: bool = False) -> None:
    """Write a PNG of the cases that were measured, light or dark. Raises OSError."""
    from matplotlib import style  # half a second, which only a plot needs

    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    colours = {**dict.fromkeys(names, DARK[1]), "figure.facecolor": DARK[0], "axes.facecolor": DARK[0]}
    with style.context(colours if dark else {}):
        _draw(result, file)


def _draw(result: BenchmarkResult, file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = [case for case in result.cases if case.measured is not None]
    scaling = [case for case in measured if case.batch_size == measured[0].batch_size]
    sweep = [case for case in measured if case.ranks == measured[0].ranks]
    views = [(_draw_scaling, scaling), (_draw_phases, measured)]
    if len({case.batch_size for case in sweep}) > 1:
        views.insert(1, (_draw_sweep, sweep))
    figure = Figure(figsize=(5.2 * len(views), 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for number, (draw, cases) in enumerate(views, start=1):
        axes = figure.add_subplot(1, len(views), number)
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes, cases)
    figure.suptitle(f"{result.config} on {result.machine}", fontsize=10, parse_math=False)
    figure.savefig(file, format="png")


def _draw_scaling(axes: Axes, cases: list[CaseResult]) -> None:
    ranks, speeds = _speeds(cases, by="ranks")
    axes.plot(ranks, speeds, marker="o", color=COLOURS[0], label="measured")
    axes.plot(ranks, [speeds[0] / ranks[0] * count for count in ranks], linestyle=":", color=COLOURS[5], label="ideal")
    axes.set(title="Scaling", xlabel="ranks", ylabel="samples per second", ylim=(0, None))
    axes.set_xticks(ranks)
    axes.legend(frameon=False)


def _draw_sweep(axes: Axes, cases: list[CaseResult]) -> None:
    cases = sorted(cases, key=lambda case: case.batch_size)
    sizes, speeds = _speeds(cases, by="batch_size")
    axes.plot(sizes, speeds, marker="o", color=COLOURS[0])
    memory = [max(case.measured.memory_mib, default=0.0) / 1024 for case in cases if case.measured is not None]
    axes.set(title="Batch size", xlabel="batch size of a rank", ylabel="samples per second", ylim=(0, None))
    axes.set_xticks(sizes)
    other = axes.twinx()
    other.plot(sizes, memory, marker="s", markersize=4, linestyle="--", color=COLOURS[1])
    other.set_ylabel("memory in GiB (dashed)", color=COLOURS[1])
    other.set_ylim(0, 1.1 * max(memory) or 1.0)
    other.spines["top"].set_visible(False)


def _draw_phases(axes: Axes, cases: list[CaseResult]) -> None:
    machines = [f"\n{len(case.machines)} machines" if len(case.machines) > 1 else "" for case in cases]
    labels = [f"{case.ranks} x {case.batch_size}{more}" for case, more in zip(cases, machines, strict=True)]
    left = [0.0] * len(cases)
    names = list(cases[0].measured.phases) if cases[0].measured is not None else []
    for name, colour in zip(names, COLOURS, strict=False):
        widths = [1000 * case.measured.phases.get(name, 0.0) if case.measured is not None else 0.0 for case in cases]
        axes.barh(labels, widths, left=left, color=colour, label=name)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(title="What a step consists of, on average", xlabel="milliseconds", ylabel="ranks x batch size")
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _speeds(cases: list[CaseResult], by: str) -> tuple[list[int], list[float]]:
    points = sorted((getattr(case, by), case.measured.samples_per_s) for case in cases if case.measured is not None)
    return [point[0] for point in points], [point[1] for point in points]

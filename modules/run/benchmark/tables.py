"""The results of a benchmark as text, alone and beside those of another one."""

from __future__ import annotations

from collections.abc import Sequence

from modules.files import printable
from modules.run.benchmark.records import BenchmarkResult, CaseResult, Measured

_DASH = "-"
HEADS = ("ranks", "batch", "samples/s", "scaling", "median step", "90 % below", "memory", "of peak", "machines")
COMPARED_HEADS = ("ranks", "batch", "before", "after samples/s", "change", "median step", "memory", "machines", "")
NOISE = 0.03  # a difference below this share is not called one


def result_lines(result: BenchmarkResult) -> list[str]:
    """One row for each case: throughput, scaling, step time and what it consists of, memory."""
    notes = [f"{name_of(case)}: {printable(case.failure)}" for case in result.cases if case.measured is None]
    anatomy = [
        [*_key(case), *_phases(case.measured), _machines(case)] for case in result.cases if case.measured is not None
    ]
    phases = next((list(case.measured.phases) for case in result.cases if case.measured is not None), [])
    lines = [*_table(HEADS, result_rows(result)), *notes]
    if anatomy:
        lines += ["", "What a step consists of, on average:", *_table(["ranks", "batch", *phases, "machines"], anatomy)]
    return lines


def result_rows(result: BenchmarkResult) -> list[list[str]]:
    """The cells below HEADS, a row for each case."""
    return [[*_key(case), *_cells(case, _scaling(result, case)), _machines(case)] for case in result.cases]


def compared_lines(before: BenchmarkResult, after: BenchmarkResult) -> list[str]:
    """The cases that both have, with the change of throughput, step and memory; then those that only one has."""
    rows, alone = compared_rows(before, after)
    return [*(_table(COMPARED_HEADS, rows) if rows else ["No case was measured in both."]), *alone]


def compared_rows(before: BenchmarkResult, after: BenchmarkResult) -> tuple[list[list[str]], list[str]]:
    """The cells below COMPARED_HEADS, a row for each case that both have; and a line for each that only one has."""
    by_key = {case.key: case for case in before.cases}
    rows: list[list[str]] = []
    alone: list[str] = []
    for case in after.cases:
        former = by_key.pop(case.key, None)
        old, new = (None if each is None else each.measured for each in (former, case))
        if old is None or new is None:
            alone.append(f"{name_of(case)}: not measured {'before' if old is None else 'after'}")
            continue
        change = new.samples_per_s / old.samples_per_s - 1 if old.samples_per_s else 0.0
        verdict = "the same" if abs(change) < NOISE else "faster" if change > 0 else "slower"
        rows.append(
            [
                *_key(case),
                f"{old.samples_per_s:.4g}",
                f"{new.samples_per_s:.4g}",
                f"{change:+.1%}",
                f"{_ms(old.median_s)} -> {_ms(new.median_s)}",
                f"{_memory(old)} -> {_memory(new)}",
                _machines(case),
                verdict,
            ]
        )
    return rows, alone + [f"{name_of(case)}: not measured after" for case in by_key.values()]


def unmeasured_rows(before: BenchmarkResult, after: BenchmarkResult | None) -> list[list[str]]:
    """The cells below COMPARED_HEADS of the cases that only `before` has measured, with dashes for the rest."""
    done = {case.key for case in after.cases if case.measured is not None} if after is not None else set()
    return [
        [
            *_key(case),
            f"{old.samples_per_s:.4g}",
            _DASH,
            _DASH,
            f"{_ms(old.median_s)} ->",
            f"{_memory(old)} ->",
            _machines(case),
            "",
        ]
        for case in before.cases
        if case.key not in done and (old := case.measured) is not None
    ]


def differences(before: BenchmarkResult, after: BenchmarkResult) -> list[str]:
    """What else differs between two benchmarks, which makes their figures hard to compare."""
    pairs = [
        ("config", before.config, after.config),
        ("family", before.family, after.family),
        ("machine", before.machine, after.machine),
        *((name, before.versions.get(name, _DASH), version) for name, version in after.versions.items()),
    ]
    return [f"{printable(name)}: {printable(old)} -> {printable(new)}" for name, old, new in pairs if old != new]


def _scaling(result: BenchmarkResult, case: CaseResult) -> float | None:
    """Throughput per rank beside that of the fewest ranks with the same batch: 1 is ideal."""
    same = [each for each in result.cases if each.batch_size == case.batch_size and each.measured is not None]
    first = min(same, key=lambda each: each.ranks, default=None)
    if case.measured is None or first is None or first.measured is None or not first.measured.samples_per_s:
        return None
    return (case.measured.samples_per_s / case.ranks) / (first.measured.samples_per_s / first.ranks)


def _key(case: CaseResult) -> list[str]:
    return [str(case.ranks), str(case.batch_size)]


def name_of(case: CaseResult) -> str:
    """`1 rank, batch size 4`, or `2 ranks on alpha and beta, batch size 4`."""
    where = f" on {' and '.join(map(printable, case.machines))}" if len(case.machines) > 1 else ""
    return f"{case.ranks} rank{'s' if case.ranks > 1 else ''}{where}, batch size {case.batch_size}"


def _machines(case: CaseResult) -> str:
    return ", ".join(map(printable, case.machines)) or _DASH


def _cells(case: CaseResult, scaling: float | None) -> list[str]:
    found = case.measured
    if found is None:
        return [_DASH] * 6
    return [
        f"{found.samples_per_s:.4g}",
        _DASH if scaling is None else f"{scaling:.0%}",
        _ms(found.median_s),
        _ms(found.p90_s),
        _memory(found),
        f"{found.peak_percent:.0f}%" if found.peak_percent else _DASH,
    ]


def phases_line(found: Measured) -> str:
    """What a step consists of, in one line; a few slow steps make the mean longer than the median."""
    whole = sum(found.phases.values())
    phases = ", ".join(
        f"{name} {_ms(seconds)} ({seconds / (whole or 1.0):.0%})" for name, seconds in found.phases.items()
    )
    return f"on average a step takes {_ms(whole)}: {phases}"


def _phases(found: Measured) -> list[str]:
    whole = sum(found.phases.values())
    return [f"{_ms(seconds)} {seconds / whole if whole else 0:.0%}" for seconds in found.phases.values()]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _memory(found: Measured) -> str:
    return f"{max(found.memory_mib, default=0.0) / 1024:.2f} GiB"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)]

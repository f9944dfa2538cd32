"""The fuzzers in short: some cases of every kind, and a proof that a fault would be found."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest

from modules.distributed.rank_group import RankGroup
from modules.distributed.store_barrier import StoreBarrier
from modules.run.join import client
from modules.run.supervise.supervisor import Supervisor
from scripts import torture
from tests.torture.kinds import KINDS, hosts, store
from tests.torture.kinds.broken import EXPECTED
from tests.torture.watch import Plan, Tally, run

CASES = {"models": 12, "conversions": 8, "folders": 60, "frames": 15, "runs": 15}
OF_OTHERS = 30
MAY_REFUSE_ALL = {"frames"}  # which waits a second for a message: a busy machine has it refuse good ones, too

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the harness measures memory in /proc"),
]


def described(tallies: list[Tally]) -> str:
    return "\n".join(
        f"{fault.kind}:{fault.number} {fault.result}: {fault.detail}" for t in tallies for fault in t.faults
    )


def test_mutants_of_every_kind_are_accepted_or_refused(tmp_path: Path) -> None:
    plans = [Plan(kind, 0, CASES.get(kind, OF_OTHERS) - 1) for kind in KINDS]
    tallies = run(plans, "ci", tmp_path, hang_s=60)  # a busy machine has taken longer than 5 s for a case
    assert not described(tallies)
    assert {tally.kind: tally.cases for tally in tallies} == {plan.kind: plan.last + 1 for plan in plans}
    one_sided = [
        tally.kind for tally in tallies if not (tally.refused and (tally.accepted or tally.kind in MAY_REFUSE_ALL))
    ]
    assert not one_sided, "the mutants of these kinds are all too damaged to get far, or hardly changed"


def test_stand_ins_are_in_the_place_of_what_the_program_calls() -> None:
    """They are put there by name, and nothing else says when the program no longer looks there."""
    assert vars(client)["Supervisor"] is Supervisor
    replaced = {name for name in vars(hosts._Training) if not name.startswith("_")} - {"codes"}
    assert replaced <= {*dir(Supervisor)}
    assert "_POLL_EVERY_S" in vars(client)
    taken = [*signature(store._gather([])).parameters]
    for real in (RankGroup.gather, StoreBarrier.gather):
        assert [*signature(real).parameters] == ["self", *taken]


def test_every_fault_of_a_reader_is_found_and_named(tmp_path: Path) -> None:
    (tally,) = run([Plan("broken", 0, max(EXPECTED))], "ci", tmp_path, hang_s=0.7)
    found = {fault.number: fault.result for fault in tally.faults}
    assert found == {number: result for number, result in EXPECTED.items() if result in ("crash", "hang")}
    assert (tally.cases, tally.refused, tally.accepted) == (len(EXPECTED), 1, 2)
    details = {fault.number: fault.detail for fault in tally.faults}
    for number, part in {2: "a mistake", 3: "broken.py", 5: "written.txt", 6: "ended with 1", 7: "ZeroDivision",
                         9: "os.system", 11: "MemoryError"}.items():  # fmt: skip
        assert part in details[number]


def test_a_case_is_a_function_of_seed_kind_and_number(tmp_path: Path) -> None:
    for folder, plan in (
        ("whole", Plan("captions", 0, 3)),
        ("one", Plan("captions", 3, 3)),
        ("other", Plan("captions", 2, 2)),
    ):
        run([plan], "ci", tmp_path / folder)
    texts = [
        {path.name: beginning(path) for path in sorted((tmp_path / folder / "case").rglob("*.txt")) if path.is_file()}
        for folder in ("whole", "one", "other")
    ]
    assert texts[0] == texts[1] != texts[2]


def beginning(file: Path) -> tuple[int, bytes]:
    """The size, and the first bytes: some mutants have six gigabytes of zeros."""
    with file.open("rb") as opened:
        return file.stat().st_size, opened.read(1 << 16)


def test_numbers_and_folders_of_images_that_cannot_be_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert torture.main(["--images", "0"]) == 2
    (tmp_path / "many").mkdir()
    assert torture.main(["--images", "5", "--keep", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "--images is 0; use a whole number from 1." in said
    assert "is there already" in said

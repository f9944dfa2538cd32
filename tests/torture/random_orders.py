"""Runs whose data changes while they stand still and while they train: `random_orders.py FOLDER SEED FIRST LAST`.

Each is drawn from its number, computed without a model, and shows each image exactly as often as it should; a line is
printed for each case.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.data.loading.test_data_record import check_exactly_once
from tests.torture.records import print_record


def _case(folder: Path, name: str) -> tuple[bool, str]:
    check_exactly_once(random.Random(name), folder)
    return True, name


def main(folder: Path, seed: str, first: int, last: int) -> None:
    """Run these cases."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, last + 1):
        print_record(number, partial(_case, folder, f"{seed}:{number}"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

"""What the programs that break runs print: a line of JSON for each case."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable


def print_record(number: int, case: Callable[[], tuple[bool, str]], first: int = 0) -> bool:
    """Run a case, which returns whether it was "accepted" and not "refused", and what was done, and print its record.

    An exception is a crash, whose detail is the traceback; nothing is printed for cases before `first`. Returns False
    for StopIteration: there is no further case.
    """
    started = time.monotonic()
    try:
        is_accepted, detail = case()
        result = "accepted" if is_accepted else "refused"
    except StopIteration:
        return False
    except Exception:  # noqa: BLE001  # whatever it is, it is the case's result
        result, detail = "crash", traceback.format_exc()
    if number >= first:
        record = {"number": number, "result": result, "detail": detail, "seconds": time.monotonic() - started}
        print(json.dumps(record), flush=True)
    return True

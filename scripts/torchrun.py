"""torchrun, whose store listens on the loopback interface if all processes are on this machine.

Started by hand or in a pod, it ends with the exit code of the process that ended first, where torchrun's own is 1.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import prepare_program, quick_imports

prepare_program()

with quick_imports():
    from torch.distributed import DistNetworkError, DistStoreError, run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

from modules.distributed.startup.loopback import host_store
from modules.run.console import warn
from modules.run.exit_codes import EXIT_CODES, FAILED
from modules.run.format_duration import in_words
from modules.run.launch.torchrun_folder import torchrun_folder


class _Rendezvous(static_tcp_rendezvous.StaticTCPRendezvous):
    """torchrun's static rendezvous with a store of ours, which torch would open on all interfaces."""

    last: ClassVar[_Rendezvous | None] = None

    def next_rendezvous(self) -> static_tcp_rendezvous.RendezvousInfo:
        _Rendezvous.last = self
        if self._store is None and self.rank == 0:
            self._store = host_store(self.master_addr, self.master_port, self.timeout.total_seconds())
        return super().next_rendezvous()


def main() -> int:
    """Run torchrun on the command line; returns the exit code of the run folder protocol, which says whether another
    start makes sense."""
    static_tcp_rendezvous.StaticTCPRendezvous = _Rendezvous  # type: ignore[misc]
    with torchrun_folder(os.environ):
        try:
            run.main()
        except ChildFailedError as error:
            traceback.print_exc()  # as torchrun does; the supervisor reads its table of processes
            code = error.get_first_failure()[1].exitcode
            return code if code in EXIT_CODES else 1
        except SignalException as error:
            traceback.print_exc()
            return 128 + int(error.sigval)
        except (DistNetworkError, DistStoreError) as error:
            if _Rendezvous.last is None or "EADDRINUSE" in str(error):
                raise
            _report_no_group(_Rendezvous.last, error)
            return FAILED
    return 0


def _report_no_group(tried: _Rendezvous, error: Exception) -> None:
    where = f"{tried.master_addr}:{tried.master_port}"
    warn(
        f"Training did not start: the machines could not form a group at {where} within "
        f"{in_words(tried.timeout.total_seconds())}.\n"
        "  What to try: Start the missing ones with the same --nnodes, --master_addr and --master_port, look at their "
        f"messages, and check that each reaches {where}, which is on the machine with --node_rank=0.\n"
        # the supervisor reads this line, as it would at the end of a traceback
        f"torch.distributed.{type(error).__name__}: {error}"
    )


if __name__ == "__main__":
    sys.exit(main())

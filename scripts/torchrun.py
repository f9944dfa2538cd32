"""torchrun, whose store listens on the loopback interface if all processes are on this machine.

Started by hand or in a pod, it ends with the exit code of the process that ended first, where torchrun's own is 1.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import prepare_program, quick_imports

prepare_program()

with quick_imports():
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

from modules.distributed.startup.loopback import host_store
from modules.run.exit_codes import EXIT_CODES
from modules.run.launch.torchrun_folder import torchrun_folder


class _Rendezvous(static_tcp_rendezvous.StaticTCPRendezvous):
    """torchrun's static rendezvous with a store of ours, which torch would open on all interfaces."""

    def next_rendezvous(self) -> static_tcp_rendezvous.RendezvousInfo:
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
    return 0


if __name__ == "__main__":
    sys.exit(main())

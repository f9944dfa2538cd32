"""torchrun, whose store listens on the loopback interface if all processes are on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import prepare_program, quick_imports

prepare_program()

with quick_imports():
    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

from modules.distributed.startup.loopback import host_store
from modules.run.launch.torchrun_folder import torchrun_folder


class _Rendezvous(static_tcp_rendezvous.StaticTCPRendezvous):
    """torchrun's static rendezvous with a store of ours, which torch would open on all interfaces."""

    def next_rendezvous(self) -> static_tcp_rendezvous.RendezvousInfo:
        if self._store is None and self.rank == 0:
            self._store = host_store(self.master_addr, self.master_port, self.timeout.total_seconds())
        return super().next_rendezvous()


if __name__ == "__main__":
    static_tcp_rendezvous.StaticTCPRendezvous = _Rendezvous  # type: ignore[misc]
    with torchrun_folder(os.environ):
        run.main()

"""Which environment variables reach the tests: none of the user's settings, so that they pass or fail for everybody."""

from __future__ import annotations

from collections.abc import MutableMapping

# What a launcher, or joining a group in this process, sets.
LAUNCHER_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TANDEM_START", "TANDEM_HOSTNAME"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
)
_KEPT = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH"),  # without which torch may not be importable
    *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "PROGRAMDATA", "PROGRAMFILES"),  # of Windows
    *("USERPROFILE", "USERNAME", "APPDATA", "LOCALAPPDATA", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE"),
    *("CI", "OMP_NUM_THREADS", "TANDEM_TEST_SEED", "CUDA_VISIBLE_DEVICES"),
}
_KEPT_PREFIXES = ("PYTEST_", "HYPOTHESIS_", "COVERAGE_")


def scrub(environ: MutableMapping[str, str]) -> None:
    """Leave what programs need to start, and what is meant for the tests themselves."""
    for name in set(environ):
        if name not in _KEPT and not name.startswith(_KEPT_PREFIXES):
            del environ[name]
    environ["LANG"] = "C.UTF-8"

"""Preflight checks: test everything that a run of several processes needs before the run starts."""

from modules.preflight.coordinator import PreflightOptions
from modules.preflight.rank import run_preflight

__all__ = ["PreflightOptions", "run_preflight"]

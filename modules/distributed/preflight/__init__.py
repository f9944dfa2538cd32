"""The preflight: everything that a run of several processes needs, tried out before it is needed."""

from modules.distributed.preflight.conductor import Answer, Conductor, Context
from modules.distributed.preflight.rank import Check, Wanted, run_preflight

__all__ = ["Answer", "Check", "Conductor", "Context", "Wanted", "run_preflight"]

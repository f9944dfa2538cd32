"""Starts the processes of a run for the search, in a temporary run folder with a cache of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from modules.config import EQUAL, ConfigError, Interval, TandemError, TrainConfig
from modules.files import FileFault, remove_tree
from modules.run.batch_size.records import RESULT, VARIABLE, SearchRequest, SearchResult
from modules.run.exit_codes import FAILED, FINISHED, INTERRUPTED
from modules.run.folder.run_folder import RunFolder
from modules.run.hosts.host import Host
from modules.run.hosts.measuring import machines_text, on_machines
from modules.run.launch.rank_env import refuse_rank
from modules.run.start import check_start, start_run


class SearchEnded(TandemError):
    """The search found nothing; its processes have said why. `code` is their exit code."""

    def __init__(self, code: int) -> None:
        super().__init__("The search ended without a result; the reason stands above")
        self.code = code


def find_batch_size(
    config: TrainConfig, request: SearchRequest, echo: Callable[[str], None], hosts: Sequence[Host] = ()
) -> SearchResult:
    """The largest batch of each rank that `config` starts on this machine and on `hosts`, over ssh. Trains nothing, and
    leaves nothing behind but the logs of a search that failed.

    Raises TandemError if this machine cannot run the config, SearchEnded if the processes failed or were stopped.
    """
    if note := machines_text(len(hosts), config.num_nodes):
        echo(note)

    def start(searched: TrainConfig, folder: RunFolder) -> None:
        if (code := start_run(searched, folder, echo, hosts=hosts)) != FINISHED:
            raise SearchEnded(code)

    return search(on_machines(config, 1 + len(hosts)), request, start)


def search(
    config: TrainConfig, request: SearchRequest, start: Callable[[TrainConfig, RunFolder], object]
) -> SearchResult:
    """What the processes find that `start` starts with the config and the run folder of the search, and waits for.

    Raises TandemError for a config or request that cannot be searched, or in a rank, SearchEnded if they were stopped.
    """
    refuse_rank(os.environ, "The search for the batch size")
    request.check()
    check_searchable(config)
    place = Path(tempfile.mkdtemp(prefix="tandem-batch-size-"))
    keeps_logs = False
    try:
        searched = search_config(config, place)
        check_start(searched, require_multi_gpu=False, token=None)
        folder = RunFolder.create(searched)
        os.environ.update(request.environment())
        start(searched, folder)
        return SearchResult.load(folder.path / RESULT)
    except SearchEnded as ended:
        keeps_logs = ended.code == FAILED  # its message names a log
        raise
    except (OSError, FileFault):  # it was asked to stop, and ended in good order
        raise SearchEnded(INTERRUPTED) from None
    finally:
        os.environ.pop(VARIABLE, None)
        remove_tree(place / "cache" if keeps_logs else place)


def check_searchable(config: TrainConfig) -> None:
    """Raises ConfigError for what cannot be searched."""
    if config.training_mode == "fully_sharded":
        raise ConfigError(
            "The batch size cannot be searched with training_mode fully_sharded, because all ranks have to take part "
            "in every attempt, and one that runs out of memory ends them all.",
            "Start with batch_size 1, and double it as long as the memory shown in the Monitor allows.",
        )


def search_config(config: TrainConfig, place: Path) -> TrainConfig:
    """The config of the search: the same model, data and optimizer, with run folder and cache in `place`.

    The cache starts with the user's list of images, so that they are not all opened again. BatchNorm without
    synchronisation takes as much memory, and lets each rank search by itself.
    """
    cache = place / "cache"
    cache.mkdir()
    with suppress(OSError):
        for index in Path(config.cache_dir).glob("index-*.safetensors"):
            if index.is_file():
                shutil.copy2(index, cache)
    return config.model_copy(
        update={
            "runs_dir": str(place / "runs"),
            "run_name": "search",
            "cache_dir": str(cache),
            "batch_size": 1,
            "balance": EQUAL,  # each rank searches by itself
            "drop_last": False,
            "cache_only": False,
            "early_stopping_patience": None,  # which would need validation images, and none are encoded
            "restore_best": False,
            "sync_batch_norm": False,
            "tensorboard": False,
            "histograms_every": Interval.never(),
            "max_restarts": 0,
        }
    )

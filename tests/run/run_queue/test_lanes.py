"""Which GPUs an entry gets and what one that waits is told, without a GPU or a process."""

from __future__ import annotations

import pytest

from modules.config import TrainConfig
from modules.machine import Gpu
from modules.run.launch.environment import restricted_to
from modules.run.launch.placement import gpus_needed
from modules.run.queue.entries import Entry, Resources
from modules.run.queue.lanes import Taker, claim, obstacles, why_waiting

CATS = Taker("cats", Resources([0]))
DOGS = Taker("dogs", Resources([2, 3]))


def entry(gpus: int | None = 1, devices: list[int] | None = None, **fields: object) -> Entry:
    return Entry.model_validate({"number": 9, "name": "x", "devices": devices, "gpus": gpus, "added": 1.0, **fields})


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({}, 1),
        ({"device": "cpu"}, None),
        ({"enable_multi_gpu": True}, None),
        ({"enable_multi_gpu": True, "world_size": 2}, 2),
        ({"enable_multi_gpu": True, "training_mode": "data_parallel"}, None),
        ({"enable_multi_gpu": True, "num_nodes": 2, "processes_per_node": [2, 1]}, 2),
        ({"world_size": 4}, 1),  # without effect
    ],
)
def test_the_settings_say_how_many_a_run_needs(settings: dict[str, object], needed: int | None) -> None:
    assert gpus_needed(TrainConfig.model_validate(settings)) == needed


def test_an_entry_gets_the_first_gpus_that_are_free() -> None:
    gpus = [0, 1, 2, 3]
    assert claim(entry(), gpus, []).devices == [0]
    assert claim(entry(), gpus, [CATS]).devices == [1]
    assert claim(entry(2), gpus, [CATS]).devices == [1, 2]
    assert claim(entry(), gpus, [], named={0, 1}).devices == [2], "those that an entry names are left for it"
    assert claim(entry(2), gpus, [CATS], named={1, 2}).devices == [1, 3], "if there are others"
    assert claim(entry(hosts=["beta"]), gpus, [CATS]) == Resources([1], ["beta"])


def test_an_entry_for_which_too_few_are_free_waits_for_all() -> None:
    """So what comes behind it takes none of those that become free."""
    gpus = [0, 1, 2, 3]
    assert claim(entry(2), gpus, [CATS, DOGS]).devices is None
    assert claim(entry(5), gpus, []).devices is None, "more than there are: its start says so"
    assert claim(entry(), [], []).devices is None, "the CPU is for one at a time"
    assert claim(entry(None), gpus, []).devices is None
    assert claim(entry(1, [0, 1]), gpus, []).devices == [0], "one process trains on the first of them"
    assert claim(entry(None, place="beta"), gpus, []) == Resources(None, [], "beta")


def test_what_an_entry_that_waits_is_told() -> None:
    gpus = [0, 1, 2, 3]
    assert why_waiting(entry(), gpus, [CATS]) == "Waits until a GPU is free: cats trains"
    assert why_waiting(entry(2), gpus, [CATS, DOGS]) == "Waits until 2 GPUs are free: cats and dogs train"
    assert why_waiting(entry(None), gpus, [CATS]) == "Waits until all GPUs are free: cats trains"
    assert why_waiting(entry(None, [2, 3]), gpus, [DOGS]) == "Waits for GPU 2 and 3, on which dogs trains"
    assert why_waiting(entry(), [], [CATS]) == "Waits for cats, which trains on this computer"
    assert why_waiting(entry(), gpus, [CATS, DOGS._replace(is_waiting=True)]) == "Waits for its turn after dogs"
    said = "Waits for cats, which trains on the same machines or GPUs"
    assert why_waiting(entry(hosts=["beta"]), gpus, [CATS]) == said


def test_an_entry_whose_own_run_has_not_ended_waits_for_it() -> None:
    """As after `remove --stop` and `retry`: another GPU may be free for it."""
    own = Taker("x", Resources([0]))
    assert obstacles(entry(), Resources([1]), [CATS, own]) == [own]
    assert why_waiting(entry(), [0, 1], [own]) == "Waits until its run, which is at work already, has ended"


def test_a_start_sees_the_gpus_that_it_has_got() -> None:
    gpu = Gpu(3, "", 0, "GPU-c", cuda_index=2)
    visible = [Gpu(5, "", 0, ""), gpu]
    for own in ({}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}):  # in which 2 is another one
        assert restricted_to([gpu], visible, own) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2"}
    own_words = restricted_to([gpu], visible, {"CUDA_VISIBLE_DEVICES": "5, 3"})
    assert own_words == {"CUDA_VISIBLE_DEVICES": "3"}, "the user's word"

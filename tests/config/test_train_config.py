from __future__ import annotations

import inspect
import os
from typing import Any

import pytest
from pydantic import ValidationError

from modules.config import Concept, Interval, TrainConfig, explain

VALIDATION = {"path": "v", "kind": "validation"}


def sentences(**given: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate(given)
    return explain(caught.value)


@pytest.mark.parametrize("suffix", ["/m.png", "../m.png", "masks\\m.png"])
def test_a_mask_suffix_names_no_folder(suffix: str) -> None:
    [sentence] = sentences(concepts=[{"path": "p", "mask_suffix": suffix}])
    assert "mask_suffix" in sentence
    assert "without folders, for example -masklabel.png" in sentence


def test_settings_are_flat_and_typed() -> None:
    config = TrainConfig(concepts=(Concept(path="pictures"),), learning_rate=3e-5)
    assert config.learning_rate == 3e-5
    assert config.concepts[0].repeats == 1.0
    assert config.optimizer.name == "adamw"
    assert config == TrainConfig.model_validate(config.model_dump())


def test_promised_names_and_defaults() -> None:
    promised: dict[str, object] = {
        "enable_multi_gpu": False,
        "distributed_backend": "nccl",
        "world_size": None,
        "use_torchrun": True,
        "distributed_data_loading": True,
        "initial_port": 12355,
        "num_nodes": 1,
        "node_rank": 0,
        "master_addr": "localhost",
        "training_mode": "auto",
        "device_ids": None,
        "lr_scaling": "sqrt",
        "find_unused_parameters": False,
        "broadcast_buffers": True,
        "bucket_cap_mb": 25,
        "static_graph": False,
        "gradient_as_bucket_view": True,
        "sync_batch_norm": False,
        "gradient_compression": "none",
    }
    config = TrainConfig()
    assert {name: getattr(config, name) for name in promised} == promised


def test_rules_between_settings() -> None:
    assert sentences(node_rank=2, num_nodes=2) == ["node_rank is 2; it must be below num_nodes, which is 2."]
    assert sentences(device_ids=[0, 0]) == ["device_ids is [0, 0]; each GPU may be listed only once."]
    assert sentences(device_ids=[0], device="cpu") == [
        "device_ids is [0], but device is cpu; leave device_ids empty, or set device to auto."
    ]
    assert sentences(device_ids=[0, 1], world_size=3) == [
        "world_size is 3, but device_ids lists 2 GPUs; leave one of them empty."
    ]
    assert len(sentences(device_ids=[0, 1], world_size=2, num_nodes=2)) == 1
    assert sentences(processes_per_node=[1, 2], num_nodes=3) == [
        "processes_per_node is [1, 2], but num_nodes is 3; give a number for each machine, or one for all."
    ]
    hybrid: dict[str, object] = {"fsdp_replicate": "machines", "training_mode": "fully_sharded", "num_nodes": 2}
    alike = "but fsdp_replicate machines needs as many processes on each machine; make them equal, or "
    alike += "set fsdp_replicate to none."
    assert sentences(**hybrid, processes_per_node=[4, 2]) == [f"processes_per_node is [4, 2], {alike}"]
    assert sentences(**hybrid, world_size=3) == [f"world_size is 3 on 2 machines, {alike}"]
    assert sentences(**{**hybrid, "training_mode": "distributed"}) == [
        "fsdp_replicate is machines, but training_mode is distributed, which shards nothing; set training_mode to "
        "fully_sharded, or set fsdp_replicate to none."
    ]
    TrainConfig.model_validate({**hybrid, "training_mode": "single"})  # as the fall-back to one device
    assert sentences(processes_per_node=[1, 2], num_nodes=2, world_size=4) == [
        "world_size is 4, but processes_per_node adds up to 3; leave one of them empty."
    ]
    assert sentences(balance="auto", training_mode="fully_sharded") == [
        "balance is auto, but with training_mode fully_sharded the ranks wait for each other in every layer, so none "
        "can measure its own speed; give numbers, such as [2, 1], or equal."
    ]
    assert sentences(on_machine_loss="continue", backup_every="never", balance=[2, 1]) == [
        "on_machine_loss is continue, which goes on from the newest backup, but backup_every is never; give an "
        "interval, such as 200 steps.",
        "on_machine_loss is continue, but balance is [2, 1], a number for each rank of all machines; set balance to "
        "auto or equal, or on_machine_loss to wait.",
    ]
    rest = "; change that, or leave it empty."
    local: dict[str, object] = {"local_steps": 50, "gradient_compression": "fp16", "sync_batch_norm": True}
    assert sentences(**local, training_mode="fully_sharded")[-3:] == [
        "local_steps is 50, but training_mode is fully_sharded, which divides the weights among the GPUs" + rest,
        "local_steps is 50, but sync_batch_norm, with which all GPUs wait for each other in every layer, is true"
        + rest,
        "local_steps is 50, but gradient_compression is fp16, which is for gradients that machines exchange (see "
        "outer_compression)" + rest,
    ]
    assert sentences(local_steps=50, optimizer={"name": "prodigy"}) == [
        "local_steps is 50, but the optimizer is prodigy, whose state an outer step would contradict" + rest
    ]
    assert sentences(balance=[2, "x"]) == [
        'balance is [2, "x"]; it must be auto, equal, or a number above 0 for each rank, such as [2, 1].'
    ]
    assert sentences(optimizer={"name": "sgd", "momentum": 0, "nesterov": True}) == [
        "optimizer.nesterov is true; it needs a momentum above 0, such as 0.9."
    ]


@pytest.mark.parametrize("address", ["a..b", "a b", "-x", "10.0.0.1:12355", "10.0.0.256", "[::1]", "a.-b", "ü"])
def test_master_addr_is_a_host_name_or_ip_address(address: str) -> None:
    assert sentences(master_addr=address) == [
        f"master_addr is {address!r}; give a host name or an IP address, such as gpu01 or 10.0.0.1; the port is "
        "initial_port."
    ]
    for right in ("gpu-01.example.org", "node_7", "10.0.0.1", "fe80::1%eth0", "::1", "3com", "a."):
        assert TrainConfig(master_addr=right).master_addr == right


def test_early_stopping_needs_validation() -> None:
    both = sentences(early_stopping_patience=3)
    assert [sentence.split(",")[0] for sentence in both] == ["early_stopping_patience is 3"] * 2
    assert "validate_every" in both[0]
    assert "validation_split" in both[1]
    switched_off = {**VALIDATION, "enabled": False}
    assert len(sentences(early_stopping_patience=3, validate_every=100, concepts=[switched_off])) == 1


def test_histograms_need_tensorboard() -> None:
    (sentence,) = sentences(histograms_every="2 epochs", tensorboard=False)
    assert sentence.startswith("histograms_every is 2 epochs, but tensorboard, which shows them, is false")
    assert TrainConfig.model_validate({"tensorboard": False}).histograms_every == Interval.never()


def test_histograms_of_shards_are_computed_in_the_same_step() -> None:
    (sentence,) = sentences(histograms_every="30 minutes", training_mode="fully_sharded")
    assert sentence.startswith("histograms_every is 30 minutes, but with fully_sharded all processes compute them in")
    assert TrainConfig.model_validate({"histograms_every": "30 minutes", "training_mode": "distributed"})


def test_embedding_init_must_not_be_blank() -> None:
    assert sentences(method="embedding", embedding_init="  ") == ["embedding_init is '  '; give a word, such as cat."]


@pytest.mark.parametrize(
    "given",
    [
        {"device_ids": [0, 1], "world_size": 2},
        {"device_ids": [0, 1], "world_size": 4, "num_nodes": 2},
        {"processes_per_node": [1, 2], "num_nodes": 2, "world_size": 3},
        {"processes_per_node": [2], "num_nodes": 3, "world_size": 6},
        {"early_stopping_patience": 3, "validate_every": "1 epoch", "validation_split": 0.1},
        {"early_stopping_patience": 3, "validate_every": "1 epoch", "concepts": [VALIDATION]},
        {"concepts": [{"path": "same"}, {"path": "same"}]},
        {"loader_workers": 0, "persistent_workers": True},
    ],
)
def test_allowed_together(given: dict[str, Any]) -> None:
    TrainConfig.model_validate(given)


def test_sections_declare_settings_with_setting_only() -> None:
    for base in TrainConfig.__bases__:
        source = inspect.getsource(base)
        assert "Field(" not in source


@pytest.mark.parametrize(
    ("given", "sides"), [(512, (512,)), ([512, 768], (512, 768)), ("512 768", (512, 768)), ([], ()), ("", ())]
)
def test_resolutions_of_a_concept(given: object, sides: tuple[int, ...]) -> None:
    config = TrainConfig.model_validate({"concepts": [{"path": "a", "resolutions": given}]})
    assert tuple(config.concepts[0].resolution_list) == sides


@pytest.mark.parametrize("given", [4, [512, 9000], "512,768", True, [512.5]])
def test_resolutions_that_are_none(given: object) -> None:
    with pytest.raises(ValidationError, match="resolutions"):
        TrainConfig.model_validate({"concepts": [{"path": "a", "resolutions": given}]})


def test_a_folder_of_this_machine_may_be_below_the_home_folder() -> None:
    given = {"runs_dir": "~/runs", "cache_dir": "~/cache", "rescue_dir": "~/rescue", "concepts": [{"path": "~/cats"}]}
    config = TrainConfig.model_validate(given)
    assert (config.runs_dir, config.cache_dir) == (os.path.expanduser("~/runs"), os.path.expanduser("~/cache"))
    assert config.rescue_dir == os.path.expanduser("~/rescue")
    assert config.concepts[0].path == "~/cats", "which other machines of the run read in their own home folder"

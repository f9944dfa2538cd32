"""safetensors files written tensor by tensor: what safetensors itself reads, whole or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from modules.checkpoint.formats import SafetensorsFile, lazy_tensor, write_safetensors
from modules.config import ConfigError
from modules.diffusion.base_model_files import open_safetensors
from modules.files import FileFault
from tests.permissions import modes_respected


def test_safetensors_reads_every_kind_of_number(tmp_path: Path) -> None:
    tensors = {
        "scalar": torch.tensor(3.5),
        "bf16": torch.randn(3, 5).bfloat16(),
        "turned": torch.randn(4, 6).T,
        "int": torch.arange(7),
        "bool": torch.tensor([True, False, True]),
        "empty": torch.zeros(0),
        "half": torch.randn(3).half(),
    }
    write_safetensors(tmp_path / "x", {name: lazy_tensor(tensor) for name, tensor in tensors.items()}, {"a": "ü"})
    read = load_file(tmp_path / "x")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
    with SafetensorsFile(tmp_path / "x") as again:
        assert again.metadata["a"] == "ü"
        assert again.stored_dtype("bf16") == torch.bfloat16
        assert again.shape("turned") == (6, 4)


def test_only_numbers_with_a_point_change_their_format(tmp_path: Path) -> None:
    write_safetensors(
        tmp_path / "x",
        {"a": lazy_tensor(torch.ones(2), torch.float16), "b": lazy_tensor(torch.arange(2), torch.float16)},
        {},
    )
    assert {name: tensor.dtype for name, tensor in load_file(tmp_path / "x").items()} == {
        "a": torch.float16,
        "b": torch.int64,
    }


def test_a_file_of_a_hundred_thousand_tensors_is_refused(tmp_path: Path) -> None:
    save_file(dict.fromkeys(map(str, range(100_001)), torch.zeros(0)), tmp_path / "x.safetensors")
    with pytest.raises(ConfigError, match="100,001 tensors"):
        SafetensorsFile(tmp_path / "x.safetensors")


@pytest.mark.skipif(os.name == "nt", reason="making links needs a privilege there")
def test_a_link_that_somebody_has_laid_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("mine")
    for name in (".partial-x", f".partial-{os.getpid()}-x"):
        (tmp_path / name).symlink_to("private")
    write_safetensors(tmp_path / "x", {"a": lazy_tensor(torch.ones(2))}, {})
    assert (tmp_path / "private").read_text() == "mine"
    assert not (tmp_path / "x").is_symlink()


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")  # not on Windows
    file = tmp_path / "x.safetensors"
    save_file({"old": torch.ones(1)}, file)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # the kernel's own refusal to write on
    try:
        with pytest.raises(OSError, match="too large") as caught:
            write_safetensors(file, {"new": lazy_tensor(torch.ones(100_000))}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(file)
    assert list(load_file(file)) == ["old"]
    assert list(tmp_path.iterdir()) == [file]


def test_damaged_files_are_explained(tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    save_file({"a": torch.ones(1000)}, whole)
    (tmp_path / "cut.safetensors").write_bytes(whole.read_bytes()[:-100])
    header = b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' + b" " * (33 << 20)  # valid, but for its length
    (tmp_path / "long.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(FileFault, match="damaged or truncated"):
        open_safetensors(tmp_path / "long.safetensors")
    (tmp_path / "pickle.safetensors").write_bytes(b"PK\x03\x04" + b"x" * 100)
    (tmp_path / "text.safetensors").write_text("<html>not found, try again</html>")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "gguf.safetensors").write_bytes(b"GGUF\x03" + b"x" * 100)
    (tmp_path / "model.ckpt").write_bytes(b"\x80\x02" + b"x" * 100)
    for name, words in {
        "cut.safetensors": "damaged or truncated",
        "long.safetensors": "damaged or truncated",
        "pickle.safetensors": "is a pickle",
        "text.safetensors": "is not a safetensors file",
        "empty.safetensors": "is empty",
        "gguf.safetensors": "is a GGUF file, which is read only as a base model",
        "model.ckpt": "is a pickle",
        "missing.safetensors": "There is no file",
        ".": "is a folder",
    }.items():
        with pytest.raises(ConfigError, match=words) as refused:
            SafetensorsFile(tmp_path / name)
        assert "Error" not in str(refused.value), "no text of the library"


def test_a_file_that_may_not_be_read_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "secret.safetensors"
    save_file({"a": torch.ones(1)}, file)
    file.chmod(0)
    with modes_respected(), pytest.raises(ConfigError, match=r"secret\.safetensors' cannot be read: Permission denied"):
        SafetensorsFile(file)


@pytest.mark.parametrize("length", [0x0280, 0x0480, 0x4B50])
def test_a_length_that_looks_like_a_pickle_is_none(tmp_path: Path, length: int) -> None:
    """The file begins with the length of its header: here with the bytes that a pickle or a zip begins with."""
    save_file({"a": torch.ones(3)}, tmp_path / "short.safetensors")
    data = (tmp_path / "short.safetensors").read_bytes()
    header = data[8 : 8 + int.from_bytes(data[:8], "little")]
    file = tmp_path / "padded.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + header.ljust(length) + data[8 + len(header) :])
    with SafetensorsFile(file) as source:
        assert source.read("a").tolist() == [1, 1, 1]


@pytest.mark.parametrize("size", [10, 200_000, 400_000])
def test_kohyas_hashes_are_those_of_its_scripts(size: int, tmp_path: Path) -> None:
    """precalculate_safetensors_hashes in library/train_util.py of kohya-ss/sd-scripts: the file with `ss_` names only
    is serialised by the safetensors library; its data are hashed, and 64 KiB from 1 MiB on."""
    torch.manual_seed(0)
    tensors = {"b.lora_up.weight": torch.randn(size), "a.alpha": torch.tensor(2.0), "c": torch.randn(size // 2).half()}
    metadata = {"ss_output_name": 'kätzchen "sshs_legacy_hash":"', "modelspec.title": "x" * 99, "ss_steps": "5"}
    file = tmp_path / "x.safetensors"
    asked = {**metadata, "sshs_model_hash": "", "sshs_legacy_hash": ""}
    write_safetensors(file, {name: lazy_tensor(tensor) for name, tensor in tensors.items()}, asked)
    own = save(tensors, {name: text for name, text in metadata.items() if name.startswith("ss_")})
    data = own[8 + int.from_bytes(own[:8], "little") :]
    with SafetensorsFile(file) as written:
        found = written.metadata
    assert found["sshs_model_hash"] == hashlib.sha256(data).hexdigest()
    assert found["sshs_legacy_hash"] == hashlib.sha256(own[0x100000:0x110000]).hexdigest()[:8]
    assert {name: found[name] for name in metadata} == metadata


def test_numbers_that_are_not_finite_are_refused_when_they_are_read(tmp_path: Path) -> None:
    damaged = torch.tensor([1.0, torch.nan])
    save_file({"w": damaged, "attn_mask": torch.tensor([-torch.inf])}, tmp_path / "x.safetensors")
    with SafetensorsFile(tmp_path / "x.safetensors") as file:
        assert file.map("w").isnan().any()
        assert file.read("attn_mask").isinf().all()
        with pytest.raises(ConfigError, match=r"x\.safetensors' is damaged: 'w' contains values that are no finite"):
            file.read("w")

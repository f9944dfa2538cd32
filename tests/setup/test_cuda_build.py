"""Set-up on Windows with an NVIDIA GPU asks for a CUDA build of PyTorch, which pip's default index lacks there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import install

# the head of nvidia-smi's table (driver 560.94)
TABLE = "| NVIDIA-SMI 560.94                 Driver Version: 560.94         CUDA Version: 12.6     |"


@pytest.fixture
def windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Windows with an NVIDIA GPU and without a .venv; its folder."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{TABLE}'\n")
    program.chmod(0o755)
    for name in (*install.PIP_INDEXES, install.CPU_ONLY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "win32")
    for name, path in (
        ("VENV", ".venv"),
        ("PYTHON", ".venv/none"),
        ("UNFINISHED", ".venv/x"),
        ("INSTALLED", ".venv/i"),
    ):
        monkeypatch.setattr(install, name, tmp_path / path)
    return tmp_path


def test_set_up_stops_before_it_downloads_a_cpu_build(windows: Path) -> None:
    with pytest.raises(
        install.SetupError, match=r"driver 560\.94.*pytorch\.org.*CUDA 12\.6 or the next older.*INDEX_URL"
    ):
        install.set_up([])
    assert not (windows / ".venv").exists()


def test_no_advice_where_none_is_needed(windows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install.cuda_build_advice()
    monkeypatch.setenv(install.CPU_ONLY, "1")
    assert install.cuda_build_advice() == ""
    monkeypatch.delenv(install.CPU_ONLY)
    monkeypatch.setattr(sys, "platform", "linux")
    assert install.cuda_build_advice() == ""
    monkeypatch.setattr(sys, "platform", "win32")
    (windows / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
    assert install.cuda_build_advice() == ""
    (windows / "nvidia-smi").unlink()
    assert install.cuda_build_advice() == ""


@pytest.mark.parametrize(
    ("line", "has_cuda"), [("cuda: Optional[str] = None", False), ("cuda: Optional[str] = '12.6'", True), ("", True)]
)
def test_the_installed_build(windows: Path, line: str, has_cuda: bool) -> None:
    torch = windows / ".venv" / "Lib" / "site-packages" / "torch"
    if line:
        torch.mkdir(parents=True)
        (torch / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\nhip: Optional[str] = None\n")
    assert install._torch_has_cuda() is has_cuda

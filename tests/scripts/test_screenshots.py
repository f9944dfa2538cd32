"""scripts/screenshots.py shows the sections, and refuses what it cannot show before it opens anything."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from scripts.screenshots import main
from tests.hosts import ROOT


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="Xvfb is not installed")
def test_each_page_has_a_picture(tmp_path: Path) -> None:
    pages = ["training", "sampling"]  # what these show comes a moment later
    script = [sys.executable, str(ROOT / "scripts" / "screenshots.py"), "--own_display", "--out", str(tmp_path)]
    command = [*script, "--sections", *pages, "--sizes", "1280x800", "--modes", "dark", "--scales", "100"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    pictures = [Path(line) for line in done.stdout.splitlines()]
    assert {picture.name.split("-")[0] for picture in pictures} == set(pages)
    for picture in pictures:
        with Image.open(picture) as image:
            assert image.size == (1280, 800)
            assert len(image.getcolors(1 << 20) or []) > 100


def test_a_section_that_does_not_exist_is_refused_with_those_that_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--out", str(tmp_path / "out"), "--sections", "Monitor"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "invalid choice: 'Monitor'" in error
    assert "'monitor'" in error
    assert "'multi_gpu'" in error
    assert not (tmp_path / "out").exists()

"""scripts/screenshots.py refuses what it cannot show before it opens anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.screenshots import main


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

"""What another rank says of its images may be anything: the run ends with a sentence."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from modules.config import DataError
from modules.distributed import SharedFolderGroups
from modules.training.data.consistency import check_same_images, check_same_index_file, check_same_view
from tests.data.helpers import config_for, indexed, write_image

FORGED = ["", "[]", "{" * 5000, '["a", "b"]', '["a", "b", [1]]', "1e999", "\x1b[2J", '["a", 1, "x"]']


def ranks(*theirs: str) -> Any:
    """Rank 0 of two; the other one says `theirs`, one text at each call."""
    texts = iter(theirs)
    return SimpleNamespace(rank=0, gather=lambda name, text: [text, next(texts)])


@pytest.mark.parametrize("text", FORGED)
def test_forged_index_file(text: str) -> None:
    with pytest.raises(DataError, match="What rank 1 says of its images cannot be read") as caught:
        check_same_index_file(Path("index-1"), ["/images"], SharedFolderGroups(0, ((0, 1),)), ranks(text))
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("hashes", ["", "x", '"', "\x1b[2J"])
@pytest.mark.parametrize("text", FORGED)
def test_forged_rows(hashes: str, text: str) -> None:
    index = SimpleNamespace(
        header=SimpleNamespace(roots=["/images"]), concept=[0] * 3, relative_path=lambda row: f"{row}\udcff.png"
    )
    with pytest.raises(DataError, match="What rank 1 says of its images cannot be read"):
        check_same_images(cast(Any, index), np.arange(1, 4, dtype=np.uint64), ranks("other", hashes, text))


def test_an_index_that_another_run_has_replaced_is_neither_that_of_other_ranks_nor_of_loader_workers(
    tmp_path: Path,
) -> None:
    image, said = write_image(tmp_path / "d/0.png"), list[str]()
    config = config_for(tmp_path / "d", cache=tmp_path / "c")
    index, usable = indexed(config), np.ones(1, dtype=np.bool_)
    pickled = pickle.dumps(index)
    check_same_view(index, usable, cast(Any, SimpleNamespace(gather=lambda name, text: said.append(text) or [text])))
    check_same_view(pickle.loads(pickled), usable, ranks(*said))
    image.rename(image.with_stem("1"))
    other = indexed(config)
    assert other.path == index.path
    with pytest.raises(DataError, match="read different data"):
        check_same_view(other, usable, ranks(*said))
    check_same_view(index, usable, ranks(*said))
    with pytest.raises(DataError, match="another run that has the same settings has found other files"):
        pickle.loads(pickled)
    assert pickle.loads(pickle.dumps(index)).digest == index.digest, "workers that start later have it"
    other.path.unlink()
    assert pickle.loads(pickle.dumps(index)).digest == index.digest


def test_a_cache_folder_that_vanishes_while_it_is_filled_is_named(tmp_path: Path) -> None:
    index = SimpleNamespace(path=tmp_path / "gone" / "index-1.safetensors")
    with pytest.raises(DataError, match="gone' is gone: it was removed during the run") as caught:
        check_same_view(cast(Any, index), np.ones(3, dtype=np.bool_), ranks())
    assert "--resume latest" in str(caught.value)

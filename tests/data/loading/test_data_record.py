"""A run whose images came, went, were renamed or changed while it stood still shows each exactly once, and says so."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from modules.config import ResumeError
from modules.data.index.column_store import map_columns
from modules.data.loading.data_record import DataTable, FormerData, dump_record, former_data, read_record, resumed_order
from modules.data.loading.micro_batches import micro_batches
from modules.data.loading.order import Order, TrainingRows, Turn
from modules.data.rng import hash_bytes


@dataclass
class Images:
    """A data set without files: name -> (content, bucket, concept), the concepts' repeats, and how it is trained on;
    each file is an image at each of so many resolutions."""

    files: dict[str, tuple[int, int, int]]
    repeats: tuple[float, ...] = (1.0, 1.0)
    batch: int = 4
    drop_last: bool = False
    held_out: set[str] = field(default_factory=set)
    captions: dict[str, str] = field(default_factory=dict)
    resolutions: int = 1

    @property
    def rows(self) -> dict[str, tuple[int, int, int]]:
        """The images by their names, in the order of the index."""
        return {at(n, name): self.files[name] for n in range(self.resolutions) for name in sorted(self.files)}

    def table(self) -> DataTable:
        names, files = list(self.rows), list(self.rows.values())
        return DataTable.of(
            np.array([hash_bytes(name.encode()) for name in names], dtype=np.uint64),
            np.array([content for content, *_ in files], dtype=np.uint64),
            np.array([name not in self.held_out for name in names], dtype=np.bool_),
            "\0".join(names).encode(),
            is_read=True,
            captions=lambda: [self.captions.get(name, "").encode() for name in names],
        )

    def order(self, turn: Turn | None = None) -> Order:
        table = self.table()
        rows = np.flatnonzero(table.trained)
        files = list(self.rows.values())
        bucket, concept = (np.array([files[row][column] for row in rows], dtype=np.int32) for column in (1, 2))
        training = TrainingRows(rows, bucket, concept, self.repeats, (1.0, 1.0), table.identity[rows])
        return Order(training, 7, self.batch, self.drop_last, turn)

    def buckets(self) -> NDArray[np.int32]:
        return np.array([bucket for _, bucket, _ in self.rows.values()], dtype=np.int32)


def at(resolution: int, name: str) -> str:
    """The name of a file's image at one of the resolutions."""
    return f"{resolution}@{name}" if resolution else name


Shown = list[tuple[str, int]]  # name and seed of each sample


def train(data: Images, order: Order, samples: int, steps: int, world: int) -> tuple[Shown, int]:
    """The next `steps` of a run after `samples`, on that many ranks; also the samples seen then."""
    names, buckets, shown = list(data.rows), data.buckets(), []
    for _ in range(steps):
        progress = order.progress(samples)
        step = order.step(progress.epoch, progress.step_in_epoch)
        assert len(step) == progress.step_samples
        of_step = [
            (names[row], seed)
            for rank in range(world)
            for batch in micro_batches(step, buckets, rank, world, batch_size=3)
            for row, seed, weight in zip(batch.rows, batch.seeds, batch.weights, strict=True)
            if weight
        ]
        assert sorted(of_step) == sorted(zip((names[r] for r in step.rows), step.seeds.tolist(), strict=True))
        shown += of_step
        samples += len(step)
    return shown, samples


def stored(data: Images, order: Order, samples: int, folder: Path) -> FormerData:
    """What a backup after `samples` says of the data, written and read again."""
    progress = order.progress(samples)
    file = folder / "data.safetensors"
    file.write_bytes(dump_record(data.table(), order, samples))
    return read_record(file, samples, progress.step, progress.epoch)


def changed(data: Images, draw: random.Random, count: int) -> tuple[Images, dict[str, str]]:
    """The data with some files added, removed, renamed (new name of an image -> old name), swapped and overwritten, and
    an archive renamed."""
    files, renamed = dict(data.files), dict[str, str]()
    for number in range(count):
        match draw.choice(("add", "remove", "rename", "repack", "swap", "overwrite")):
            case "add":
                files[f"new-{draw.random()}"] = (draw.getrandbits(60) + 1, draw.randrange(3), draw.randrange(2))
            case "remove" if len(files) > 1:
                del files[draw.choice(sorted(files))]
            case "rename":
                old = draw.choice(sorted(files))
                if files[old] == data.files.get(old):
                    new = f"renamed-{draw.random()}"
                    files[new], renamed[new] = files.pop(old), old
            case "repack":
                packed = sorted(name for name in files if name[:5] == "0.tar" and files[name] == data.files.get(name))
                for old in packed:
                    new = f"{number}-{old}"
                    files[new], renamed[new] = files.pop(old), old
            case "swap":
                one, other = (draw.choice(sorted(files)) for _ in range(2))
                if one != other and all(files[name] == data.files.get(name) for name in (one, other)):
                    files[one], files[other] = files[other], files[one]
                    renamed |= {one: other, other: one}
            case "overwrite":
                name = draw.choice(sorted(files.keys() - renamed.keys()) or [""])
                if name:
                    files[name] = (draw.getrandbits(60) + 1, draw.randrange(3), files[name][2])
        assert number < count
    old_names = {at(n, now): at(n, o) for now, o in renamed.items() if now in files for n in range(data.resolutions)}
    return replace(data, files=files), old_names


def test_an_image_that_cannot_be_trained_on_for_a_while_is_not_shown_twice(tmp_path: Path) -> None:
    """Stopped after one step, resumed while some images are unreadable, stopped again, resumed with all of them."""
    data = Images({f"{n:03}": (n + 1, 0, 0) for n in range(20)})
    order = data.order()
    first, samples = train(data, order, 0, 2, 1)
    away = Images(data.files, held_out={name for name, _ in first[:3]})
    less, _ = resumed_order(stored(data, order, samples, tmp_path), away.table(), away.order)
    second, samples = train(away, less, samples, 1, 1)
    back, _ = resumed_order(stored(away, less, samples, tmp_path), data.table(), data.order)
    left = back.steps_in(0) - back.progress(samples).step_in_epoch
    third, _ = train(data, back, samples, left, 1)
    assert sorted(name for name, _ in [*first, *second, *third]) == sorted(data.files)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_each_image_comes_exactly_once(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """scripts/torture.py orders tries 2,000 more."""
    check_exactly_once(random.Random(seed), tmp_path_factory.mktemp("record"))


def check_exactly_once(draw: random.Random, folder: Path) -> None:
    """A run of random images, archives, resolutions, repeats, ranks and moments: stopped, changed, resumed, stopped
    again, resumed unchanged, changed while it trains. Raises AssertionError unless each epoch shows each image as often
    as it should."""
    resolutions = draw.choice((1, 1, 2, 3))
    images, batch, count = draw.randrange(1, 1 + 40 // resolutions), draw.randrange(1, 10), draw.randrange(13)
    repeats = (float(draw.randrange(1, 4)), float(draw.randrange(1, 4)))
    worlds, stops = [draw.randrange(1, 17) for _ in range(3)], [draw.randrange(26) for _ in range(2)]
    packed = draw.randrange(images + 1)
    files = {f"{'0.tar/' * (n < packed)}{n:03}": (n + 1, draw.randrange(3), draw.randrange(2)) for n in range(images)}
    data = Images(files, repeats, batch, resolutions=resolutions)
    order = data.order()
    first, samples = train(data, order, 0, stops[0], worlds[0])
    epoch = order.progress(samples).epoch
    before = first[len(first) - order.progress(samples).sample_in_epoch :]
    former = stored(data, order, samples, folder)
    now, old_names = changed(data, draw, count)
    resumed, told = resumed_order(former, now.table(), now.order)
    assert bool(told) is (now.files != data.files)
    progress = resumed.progress(samples)
    assert progress.step == former.step
    left = resumed.steps_in(epoch) - progress.step_in_epoch if progress.epoch == epoch else 0
    after, end = train(now, resumed, samples, left, worlds[1])
    assert (resumed.progress(end).epoch, resumed.progress(end).step_in_epoch) == (epoch + 1, 0)
    counts = {name: sum(shown == old_names.get(name, name) for shown, _ in before) for name in now.rows}
    for name, (_, _, concept) in now.rows.items():
        expected = max(repeats[concept], counts[name])  # one that came under the name of a former one is that one
        assert counts[name] + sum(shown == name for shown, _ in after) == expected, name
    seeds = [seed for name, seed in (*before, *after) if name in now.rows and name not in old_names]
    assert len(set(seeds)) == len(seeds), "no image has the same random numbers twice in an epoch"

    later, _ = train(now, resumed, end, 2 * resumed.steps_per_epoch, worlds[1])
    for name, (_, _, concept) in now.rows.items():
        assert sum(shown == name for shown, _ in later) == 2 * repeats[concept]
    whole = after + later
    part, samples = train(now, resumed, samples, stops[1], worlds[1])
    again, told = resumed_order(stored(now, resumed, samples, folder), now.table(), now.order)
    assert told == ""
    steps = max(0, left + 2 * resumed.steps_per_epoch - stops[1])
    rest, _ = train(now, again, samples, steps, worlds[2])
    assert [sorted(whole)] == [sorted(part + rest)] or stops[1] > left + 2 * resumed.steps_per_epoch
    assert again.progress(samples).step == resumed.progress(samples).step

    live, _ = changed(now, draw, count)
    end = resumed.progress(0).samples_until(resumed.progress(0).steps_until(epoch + 1))
    taken, told = resumed_order(former_data(now.table(), resumed, end), live.table(), live.order, "")
    assert bool(told) is (live.files != now.files)
    assert taken.progress(end).step == resumed.progress(end).step
    whole, _ = train(live, taken, end, 2 * taken.steps_per_epoch, worlds[2])
    for name, (_, _, concept) in live.rows.items():
        assert sum(shown == name for shown, _ in whole) == 2 * repeats[concept], name
    resumed = resumed_order(stored(live, taken, end, folder), live.table(), live.order)[0]
    steps = taken.steps_per_epoch
    halves = [train(live, order, end, steps, world)[0] for order, world in ((taken, 1), (resumed, 3))]
    assert sorted(halves[0]) == sorted(halves[1])


def test_what_has_changed_is_told(tmp_path: Path) -> None:
    files = {f"{n:02}.png": (n + 1, 0, 0) for n in range(20)}
    data = Images(files, held_out={"19.png"})
    order = data.order()
    tell = partial(resumed_order, stored(data, order, 8, tmp_path))
    assert tell(data.table(), data.order)[1] == ""
    now = Images(dict(files), held_out={"18.png"})
    now.files["z\n.png"] = now.files.pop("00.png")
    for name in ("01.png", "02.png", "03.png", "04.png"):
        del now.files[name]
    now.files["new.png"] = (99, 0, 0)
    now.files["05.png"] = (98, 0, 0)
    resumed, told = tell(now.table(), now.order)
    shown = [sorted(files)[row] for row in order.epoch(0)[:8]]
    left = 16 - sum(name in shown for name in sorted(set(files) - {"01.png", "02.png", "03.png", "04.png", "18.png"}))
    assert told == (
        "The data has changed since the backup: 1 came (new.png), 4 went (01.png, 02.png, 03.png and 1 more), "
        "1 renamed or moved (00.png -> z\\n.png), 1 with other content (05.png), 1 no longer trained on (18.png), 1 "
        f"trained on from now on (19.png). The epoch goes on with the {left} samples of these that it has not "
        "shown yet; the next ones have 16."
    )
    assert len(resumed.epoch(0)) == left
    other = Images({**files, "05.png": (98, 0, 0)}, held_out={"19.png"})
    assert "1 with other content (05.png). The order stays the same." in tell(other.table(), other.order)[1]
    halved = Images(files, (2.0, 1.0), held_out={"19.png"})
    assert "their repeats, the seed or drop_last. The epoch goes on" in tell(halved.table(), halved.order)[1]


def test_images_that_swap_their_names_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    """One that the epoch has shown and one that it has not: neither comes twice, neither is left out."""
    data = Images({f"{n:02}": (n + 1, 0, 0) for n in range(12)})
    order = data.order()
    first, samples = train(data, order, 0, 1, 1)
    shown = first[0][0]
    other = next(name for name in sorted(data.files) if name not in dict(first))
    swapped = Images({**data.files, shown: data.files[other], other: data.files[shown]})
    resumed, told = resumed_order(stored(data, order, samples, tmp_path), swapped.table(), swapped.order)
    pair = sorted((shown, other))
    assert (
        f": 2 renamed or moved ({pair[1]} -> {pair[0]}, {pair[0]} -> {pair[1]}). The epoch goes on with the 8" in told
    )
    rest, _ = train(swapped, resumed, samples, 2, 2)
    contents = [data.files[name][0] for name, _ in first] + [swapped.files[name][0] for name, _ in rest]
    assert sorted(contents) == list(range(1, 13))
    taken = Images({name: each for name, each in data.files.items() if name != shown})
    taken.files[shown], taken.files["moved"] = (99, 0, 0), data.files[shown]
    told = resumed_order(stored(data, order, samples, tmp_path), taken.table(), taken.order)[1]
    assert f": 1 came ({shown}), 1 renamed or moved ({shown} -> moved). " in told


def test_new_captions_are_told_and_change_no_order(tmp_path: Path) -> None:
    data = Images({f"{n:02}": (n + 1, 0, 0) for n in range(12)})
    former = stored(data, data.order(), 4, tmp_path)
    edited = Images(data.files, captions={"03": "other words"})
    assert (
        "1 with another caption (03). The order stays the same." in resumed_order(former, edited.table(), data.order)[1]
    )
    before = replace(former.table, hash_captions=lambda: None)  # a backup of 0.3.0
    assert resumed_order(replace(former, table=before), edited.table(), data.order)[1] == ""


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    data = Images({f"{n}": (n + 1, 0, 0) for n in range(9)})
    former = stored(data, data.order(), 4, tmp_path)
    file = tmp_path / "data.safetensors"
    good, header = map_columns(file)
    columns = {name: np.array(column) for name, column in good.items()}
    assert former.shown.sum() == 4
    faults = [
        ({**columns, "shown": columns["shown"][:3]}, header),
        ({**columns, "identity": columns["identity"].astype(np.int64)}, header),
        ({name: column for name, column in columns.items() if name != "content"}, header),
        (columns, header.replace('"samples":0', '"samples":5')),
        (columns, header.replace('"samples":0', '"samples":-1')),
        (columns, "{}"),
    ]
    for changed_columns, text in faults:
        file.write_bytes(save(changed_columns, {"tandem": text}))
        with pytest.raises(ResumeError, match="is damaged"):
            read_record(file, 4, 1, 0)
    file.write_bytes(save({**columns, "names": np.frombuffer(b"no", dtype=np.uint8)}, {"tandem": header}))
    assert read_record(file, 4, 1, 0).table.names() == [b""] * 9, "names are for people only"
    file.unlink()
    with pytest.raises(ResumeError, match="is damaged"):
        read_record(file, 4, 1, 0)

"""RUNS_DIR/.queue/: queue.json, a copy of each entry's config, and the lock that lets one program at a time edit it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from modules.config import ConfigError, TrainConfig, load_config, save_config
from modules.config.file_access import require_own
from modules.config.run_names import sanitize_run_name
from modules.files import (
    FileFault,
    is_link,
    open_for_writing,
    printable,
    read_json,
    remove_partial,
    replacing,
    validate_record,
    whole_path,
)
from modules.run.folder.commands import request_command
from modules.run.folder.links import refuse_links
from modules.run.folder.run_folder import RunFolder, check_run_name, not_writable_error
from modules.run.folder.run_lock import file_lock
from modules.run.hosts.host_list import find_hosts
from modules.run.launch.detached import check_config, next_free_name
from modules.run.launch.placement import gpus_needed
from modules.run.queue.entries import MOST_ENTRIES, Entry, Queue, Wanted, fault_of, now
from modules.run.queue.own_copy import check_trains_there, on_devices, own_copy
from modules.run.remote.copy_folders import remember_copies_in

QUEUE_DIR: Final = ".queue"  # no name of a run
_NOT_OURS: Final = (
    "Nothing was changed. Use a runs folder of your own, or make the file yours (chown); with TANDEM_UMASK=007 those "
    "of your group are used"
)
_WAIT_FOR_EDITOR_S: Final = 20.0
# The lock of a file keeps processes apart, not the threads of one.
_EDITING = threading.Lock()


class RunQueue:
    """The queue of a runs folder; every change is one edit under a lock. Constructing it writes nothing."""

    def __init__(self, runs_dir: str | Path) -> None:
        self.runs_dir = whole_path(runs_dir)
        self.path = self.runs_dir / QUEUE_DIR
        self._file = self.path / "queue.json"

    @property
    def runner_lock(self) -> Path:
        """Locked by the process that works off the queue."""
        return self.path / "runner.lock"

    @property
    def console_file(self) -> Path:
        """The output of a runner that the window has started."""
        return self.path / "runner.txt"

    def config_file(self, number: int) -> Path:
        """The config of an entry, as it was when it was added."""
        return self.path / f"config-{number}.json"

    def run_folder(self, entry: Entry) -> RunFolder:
        """The folder of an entry's run, which need not exist."""
        return RunFolder(self.runs_dir / entry.name)

    def read(self) -> Queue:
        """The queue as it is now; empty if there is none. Raises ConfigError for a file that is none of Tandem's."""
        try:
            if is_link(self.path) or is_link(self._file):
                raise fault_of(self._file, FileFault("is a link, or in a folder that is one"))
            require_own(self._file, _NOT_OURS)
            return validate_record(Queue, read_json(self._file))
        except FileNotFoundError:
            return Queue(entries=[])
        except FileFault as fault:
            raise fault_of(self._file, fault) from None
        except OSError as error:
            raise ConfigError(f"{printable(self._file)} cannot be read: {error.strerror or error}") from None

    def edit(self, change: Callable[[Queue], Queue]) -> Queue:
        """Change the queue while nobody else can; returns the new one. Raises ConfigError, and what `change` raises."""
        try:
            with _EDITING:
                return self._edit(change)
        except FileFault as fault:
            raise fault_of(self._file, fault) from None
        except OSError as error:
            raise not_writable_error(self.path, error) from error

    def _edit(self, change: Callable[[Queue], Queue]) -> Queue:
        if is_link(self.path):
            raise fault_of(self.path, FileFault("is a link"))
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links(self.path)
        with file_lock(self.path / "edit.lock", _WAIT_FOR_EDITOR_S) as is_mine:
            if not is_mine:
                raise ConfigError(f"{printable(self.path)} is being edited by another program", "Try again")
            remove_partial(self.path, only="")  # of programs that were killed here
            before = self.read()
            after = change(before)
            if after != before:
                self._write(after)
            kept = {entry.number for entry in after.entries}
            for entry in before.entries:
                if entry.number not in kept:
                    self.config_file(entry.number).unlink(missing_ok=True)
        return after

    def _write(self, queue: Queue) -> None:
        data = queue.model_dump(mode="json")
        validate_record(Queue, data)  # nothing is written that could not be read
        with replacing(self._file) as partial, os.fdopen(open_for_writing(partial), "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def add(
        self,
        config: TrainConfig,
        devices: Sequence[int] | None = None,
        *,
        hosts: Sequence[str] = (),
        place: str = "",
        sends_token: bool = False,
        first: bool = False,
    ) -> Entry:
        """Add a copy of the config, at the end or as the first that waits; its run gets a name that is free.

        `devices` are the GPU indices that it needs (default: its `device_ids`; if it has none, any, as many as its run
        takes). Its run starts `hosts` over ssh, as many of them as it has other machines; or it trains on the machine
        `place`, alone or with `hosts` joining it there. Raises ConfigError if this computer cannot run it, or for a
        machine that is not in the list.
        """
        names = [host.name for host in find_hosts(hosts)][: config.num_nodes - 1]
        if config.run_name is not None:
            check_run_name(config.run_name)
        config = own_copy(config, self.runs_dir, devices, has_hosts=bool(names) and not place)
        if place:
            find_hosts([place])
            check_trains_there(config, names)
        else:
            check_config(config)
        used = config.device_ids if devices is None else tuple(devices)
        added: list[Entry] = []

        def change(queue: Queue) -> Queue:
            if len(queue.entries) >= MOST_ENTRIES:
                raise ConfigError(f"the queue has {MOST_ENTRIES} entries; remove some first")
            name = self._free_name(config, queue)
            entry = Entry(
                number=queue.next_number,
                name=name,
                devices=None if used is None else list(used),
                gpus=None if place else gpus_needed(config),
                hosts=names,
                place=place,
                sends_token=sends_token,
                added=now(),
            )
            save_config(config.model_copy(update={"run_name": name}), self.config_file(entry.number))
            added.append(entry)
            changed = queue.replaced([*queue.entries, entry]).model_copy(update={"next_number": entry.number + 1})
            return changed.moved(entry.number, 0) if first else changed

        self.edit(change)
        if place or names:
            remember_copies_in(self.runs_dir)
        return added[0]

    def entries_for(self, machine: str) -> list[Entry]:
        """Those that wait for another machine, or train there, alone or with this one. Raises ConfigError."""
        return [each for each in self.read().entries if each.is_open and machine in (each.place, *each.hosts)]

    def name_for(self, config: TrainConfig) -> str:
        """The name that the run of this config would get now. Raises ConfigError."""
        return self._free_name(config, self.read())

    def _free_name(self, config: TrainConfig, queue: Queue) -> str:
        taken = [entry.name for entry in queue.entries if entry.is_open]
        unnamed = f"{sanitize_run_name(Path(config.family).stem)}-{queue.next_number}"
        folder = RunFolder(self.runs_dir / (config.run_name or unnamed))
        if folder.name in taken or folder.path.exists():
            return next_free_name(folder, taken)
        return folder.name

    def load(self, entry: Entry) -> TrainConfig:
        """The config of an entry; the run's folder is beside the queue, whatever the file says. Raises ConfigError."""
        file = self.config_file(entry.number)
        if is_link(file):
            raise fault_of(file, FileFault("is a link"))
        require_own(file, _NOT_OURS)
        return load_config(file).model_copy(update={"runs_dir": str(self.runs_dir), "run_name": entry.name})

    def move(self, number: int, place: int) -> None:
        """Put an entry at `place` (from 0) among those that wait. Raises ConfigError."""
        self.edit(lambda queue: queue.moved(number, place))

    def move_by(self, number: int, by: int) -> None:
        """Move an entry by so many places among those that wait, as they are at that moment. Raises ConfigError."""

        def change(queue: Queue) -> Queue:
            waiting = [entry.number for entry in queue.waiting]
            return queue.moved(number, waiting.index(number) + by if number in waiting else 0)

        self.edit(change)

    def set_devices(self, number: int, devices: Sequence[int] | None) -> None:
        """Let an entry that waits take these GPUs; None for any. Raises ConfigError if this computer cannot run it."""

        def change(queue: Queue) -> Queue:
            entry = queue.entry(number)
            if entry.state != "waiting":
                raise ConfigError(f"entry {entry.title} is {entry.state}; GPUs are chosen for one that waits")
            config = on_devices(self.load(entry), devices)
            if not entry.place:
                check_config(config)
            save_config(config, self.config_file(number))
            gpus = None if entry.place else gpus_needed(config)
            return queue.with_entry(entry.changed(devices=None if devices is None else list(devices), gpus=gpus))

        self.edit(change)

    def remove(self, number: int, *, stop: bool = False) -> Entry:
        """Take an entry out: one that waits is removed, so that `retry` takes it back, one that has ended is forgotten.

        One that was removed before it started is listed no more. One that runs is left alone unless `stop`: then its
        run ends after a backup. Raises ConfigError.
        """
        found: list[Entry] = []

        def change(queue: Queue) -> Queue:
            entry = queue.entry(number)
            found.append(entry)
            if entry.state == "running" and not stop:
                raise ConfigError(f"entry {entry.title} is running", "Let it end, or stop its run with --stop")
            if entry.is_open:
                return queue.with_entry(entry.changed(state="removed", ended=now(), reason="Removed", waits=""))
            return queue.replaced([each for each in queue.entries if each.number != number])

        self.edit(change)
        if found[0].state == "running":
            request_command(self.run_folder(found[0]), "stop")
        return found[0]

    def clear_ended(self) -> None:
        """Forget all entries that have ended; their run folders stay. Raises ConfigError."""
        self.edit(lambda queue: queue.replaced([entry for entry in queue.entries if entry.is_open]))

    def retry(self, number: int, place: int | None = None) -> None:
        """Let an entry that has ended or was removed wait again, as the last or at `place` (from 0).

        Its run continues from its last backup. Raises ConfigError.
        """

        def change(queue: Queue) -> Queue:
            entry = queue.entry(number)
            if entry.is_open:
                raise ConfigError(f"entry {entry.title} is {entry.state}; only one that has ended can be repeated")
            return queue.with_entry(entry.to_wait()).moved(number, len(queue.waiting) if place is None else place)

        self.edit(change)

    def rename(self, former: str, name: str) -> None:
        """Let the entries of a renamed run name it as it is now. Raises ConfigError."""
        if self._file.exists():
            self.edit(
                lambda queue: queue.replaced(
                    [entry.changed(name=name) if entry.name == former else entry for entry in queue.entries]
                )
            )

    def want(self, wanted: Wanted) -> None:
        """Say what the runner is to do: run, pause after the current runs, or stop them after a backup."""
        self.edit(lambda queue: queue.model_copy(update={"wanted": wanted}))

    def has_runner(self) -> bool:
        """Whether a process works off the queue."""
        try:
            if not self.runner_lock.exists():
                return False
            with file_lock(self.runner_lock) as is_mine:
                return not is_mine
        except OSError:
            return False

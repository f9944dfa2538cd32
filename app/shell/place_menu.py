"""The menu beside Train: where it and Queue start the run."""

from __future__ import annotations

import os
import shlex
from functools import partial
from typing import Final

from app.state import AppState
from app.widgets.buttons import Button, popup_menu
from modules.config import ConfigError
from modules.files import printable
from modules.run.hosts.host_list import read_hosts
from modules.run.remote.link import is_for_runs

_KEPT_NOWHERE: Final = "For gated models; no file there keeps it"


def open_place_menu(state: AppState, button: Button) -> None:
    """Offer this computer, the machines of the list that Tandem sets up by itself, and to add one."""
    try:
        hosts = [host for host in read_hosts() if is_for_runs(host)]
    except ConfigError as error:
        state.say(str(error))
        return
    preferences = state.preferences
    menu = popup_menu(button)
    menu.add_heading("Train and Queue start the run")
    menu.add_command("On this computer", partial(_choose, state, ""), is_chosen=not preferences.place)
    for host in hosts:
        choose = partial(_choose, state, host.name)
        ending = [f"Slurm {shlex.join(host.slurm)}"] if host.slurm else []
        ending += [f"stops after {host.stop_after:g} h"] if host.stop_after else []
        when = f"after {host.idle_minutes:g} idle min" if host.idle_minutes else "then"
        ending += [f"{when} runs {host.then}"] if host.then else []
        detail = printable(", ".join([host.target, *ending]), 70)
        menu.add_command(f"On {host.name}", choose, detail=detail, is_chosen=host.name == preferences.place)
    menu.add_separator()
    menu.add_command(
        "Add a machine…", state.views.add_machine, icon="plus", detail="Rented, or your own: ssh reaches it"
    )
    menu.add_command(
        "Kubernetes…", state.views.kubernetes, icon="multi_gpu", detail="Manifests, saved or applied with kubectl"
    )
    if hosts:
        menu.add_separator()
    for host in hosts:
        menu.add_command(f"What is on {host.name}…", partial(state.views.machine, host.name), icon="folder")
    if preferences.place in [host.name for host in hosts]:
        menu.add_command(
            f"Check the settings on {preferences.place}…",
            partial(state.views.check_there, preferences.place),
            detail="What Train would do there, and whether it fits",
        )
    if preferences.place:
        has_token = bool(os.environ.get("HF_TOKEN"))
        keeps = any(host.slurm for host in hosts if host.name == preferences.place)
        kept = "For gated models; a file there has it until the run ends" if keeps else _KEPT_NOWHERE
        menu.add_command(
            "Send my Hugging Face token",
            partial(_send_token, state),
            "normal" if has_token else "disabled",
            detail=kept if has_token else "HF_TOKEN is not set here",
            is_chosen=has_token and preferences.sends_token,
        )
    menu.open_below(button)


def _choose(state: AppState, name: str) -> None:
    state.preferences.place = name
    state.preferences.save()
    state.notify("run")
    if name:
        state.views.connect(name)  # what it lacks is said now, not at Train


def _send_token(state: AppState) -> None:
    state.preferences.sends_token = not state.preferences.sends_token
    state.preferences.save()

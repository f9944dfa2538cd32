"""List of what is wrong or missing, each with a button that shows its field."""

from __future__ import annotations

import re
import tkinter as tk
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from app.form.setting_text import fault_message, setting_title, with_titles
from app.sections.places import in_order
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, frame, text
from app.windows.dialog import Dialog
from modules.config import Fault, Option, TrainConfig, find_option

MAX_ROWS = 8
_VALUE: Final = re.compile(r"""(?<=is )(["'])([^"'\\]*)\1""")  # as it is in a file


def show_faults(
    owner: tk.Misc,
    state: AppState,
    why: str,
    missing: Sequence[Fault] = (),
    go_on: Callable[[], object] | None = None,
    anyway: str = "",
) -> tk.Toplevel:
    """Show the invalid settings, and what is `missing`; a click, or Return for the first, goes to the field.

    `go_on` is what the button `anyway` does.
    """
    faults = in_order([*state.draft.faults, *missing], state.draft.family_options)
    count = len({fault.path for fault in faults})
    kind = "invalid setting" if not missing else "thing to settle first" if count == 1 else "things to settle first"
    title = f"{count} {kind}{'s' * (count > 1 and not missing)}"
    dialog = Dialog(owner, title, why)

    def go(path: str) -> None:
        dialog.close()
        state.jump_to(path)

    def start() -> None:
        dialog.close()
        if go_on is not None:
            go_on()

    more = state.family.declaration.options if state.family.declaration is not None else ()
    for fault in faults[:MAX_ROWS]:
        row = frame(dialog.body)
        row.pack(fill="x", pady=theme.px(4))
        text(row, _culprit_first(fault, more), wrap=420).pack(side="left", fill="x", expand=True)
        Button(row, "Show", partial(go, fault.path), bg=theme.CARD).pack(side="right", padx=(12, 0))
    if len(faults) > MAX_ROWS:
        more_text = f"And {len(faults) - MAX_ROWS} more; the red numbers at the left count those of each section."
        text(dialog.body, more_text, colour=theme.MUTED, wrap=420).pack(anchor="w", pady=(theme.px(4), 0))
    if faults:
        dialog.on_return(lambda: go(faults[0].path))
    if go_on is not None:
        dialog.button(anyway, start)
    dialog.button("Close", dialog.close)
    return dialog.show()


def _culprit_first(fault: Fault, more: Iterable[Option]) -> str:
    """The sentence with titles; that of the setting at fault is put before one that begins with something else."""
    more = tuple(more)
    option = next((each for each in more if each.path == fault.path), None)
    title = setting_title(fault.path) if option is None else option.title
    option = option or find_option(TrainConfig, fault.path)
    said = fault.sentence
    if option is not None and option.choices and fault.requirement:  # files spell them otherwise
        choose = fault_message(fault, option)
        said = f"{said.partition('; it must be ')[0]}; {choose[0].lower()}{choose[1:]}"
        said += "" if said.endswith("?") else "."
    sentence = _VALUE.sub(r"“\2”", with_titles(said, more))
    has_title = title != fault.path and not sentence.removeprefix("“").startswith(title.partition(",")[0])
    return f"“{title}”: {sentence}" if has_title else sentence

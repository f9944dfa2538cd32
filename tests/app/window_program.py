"""A window in a separate process that writes its buttons and its run's status to a file ten times a second.

python tests/app/window_program.py STATE_FILE [arguments of `python -m app`]
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from app.main_window import MainWindow


def main() -> None:
    """Open the window and write its state until it is closed."""
    faulthandler.enable()
    state_file = Path(sys.argv[1])
    given = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    config, run = given.get("--config"), given.get("--run")
    window = MainWindow(Path(config) if config else None, Path(run) if run else None)
    window.geometry("1280x800+0+0")

    def write_state() -> None:
        bar = window.run_bar
        names = ("train", "resume", "stop", "back_up", "sample", "save")
        seen = [] if window._curtain.winfo_exists() else names
        state = {
            "buttons": {
                name: _middle(getattr(bar.buttons, name))
                for name in seen
                if getattr(bar.buttons, name).winfo_viewable()
            },
            "enabled": [name for name in names if getattr(bar.buttons, name).cget("state") == "normal"],
            "run": None if window.state_.run is None else str(window.state_.run.folder.path),
            "status": None if window.state_.run is None else window.state_.run.status().kind,
            "config": str(window.state_.draft.file or ""),
            "dialogs": [child.title() for child in window.winfo_children() if child.winfo_class() == "Toplevel"],
            "torch": "torch" in sys.modules,
        }
        partial = state_file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(state))
        partial.replace(state_file)
        window.after(100, write_state)

    window.after(100, write_state)
    window.mainloop()


def _middle(widget: object) -> tuple[int, int]:
    x, y, width, height = (getattr(widget, f"winfo_{name}")() for name in ("rootx", "rooty", "width", "height"))
    return x + width // 2, y + height // 2


if __name__ == "__main__":
    main()

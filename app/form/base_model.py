"""The base model: a folder, a file or a hub id, looked at as soon as it is named."""

from __future__ import annotations

from app.base_model import Finding, look_at
from app.form.path import PathField


class BaseModelField(PathField):
    """Says below the field what kind of model it is, or what is missing."""

    def _ask(self) -> None:
        self._job = ""
        name = self.control.get().strip()
        if name:
            self.state.background.run(lambda: look_at(name), lambda finding: self._found(name, finding))
        else:
            self.note("")

    def _found(self, name: str, finding: Finding) -> None:
        if self.area.winfo_exists() and name == self.control.get().strip():
            self.note(finding.fault or finding.words)

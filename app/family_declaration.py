"""What a model family declares about itself, read in a child process because the window never imports torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from app.preferences import preferences_file, read_own, write_private
from modules import ROOT
from modules.config import (
    ConfigError,
    Fault,
    Option,
    Section,
    faults,
    options,
    unknown_submodules,
    unsupported_resolution,
)
from modules.config.dynamic_section import build_section
from modules.config.family_about import family_about
from modules.config.imported_code import read_with_imports
from modules.config.trusted_code import require_trusted
from modules.facts import PROGRAM, family_names
from modules.files import FileFault, decode_json

TIMEOUT_S = 120
_FAMILIES, _FACTS = (ROOT / "modules" / folder for folder in ("families", "facts"))
_ADVICE = "Choose one of the list, or give the Python file (.py) of your own."


@dataclass(frozen=True)
class FamilyDeclaration:
    """The methods, submodules and options of one family."""

    name: str
    methods: tuple[str, ...]
    parts: tuple[str, ...]  # submodules of its model; empty if only the whole model can be trained
    options: tuple[Option, ...]
    model: type[Section]
    size_step: int  # pixels; image sides are multiples of it
    brings_data: bool = False  # whether it has data sets of its own, and no use for folders of images
    draws_samples: bool = True  # whether it generates images
    about: str = ""  # the model's name, maker, size and licence; empty if the family says nothing

    @property
    def defaults(self) -> dict[str, object]:
        """The defaults of the optional options."""
        return {option.name: option.default for option in self.options if not option.required}

    def check(self, given: dict[str, object]) -> tuple[object, list[Fault]]:
        """The given options as they are stored in a file, and their errors."""
        try:
            complete = self.model.model_validate(given).model_dump(mode="json")
        except ValidationError as error:
            return given, faults(error, self.model, "family_options")
        return {name: complete[name] for name in given}, []

    def check_config(self, data: Mapping[str, object]) -> list[Fault]:
        """Errors in other settings for this family; submodule names that are still empty are skipped."""
        listed, resolution = data.get("parts"), data.get("resolution")
        items = listed if isinstance(listed, list) else []
        named = [item.get("part") if isinstance(item, dict) else None for item in items]
        wrong = [each for each in unknown_submodules(named, self.name, self.parts) if named[int(each[0].split(".")[1])]]
        concepts = data.get("concepts")
        sides = {"resolution": [str(resolution)]}
        for number, concept in enumerate(concepts if isinstance(concepts, list) else []):
            own = concept.get("resolutions") if isinstance(concept, dict) else None
            sides[f"concepts.{number}.resolutions"] = str(own or "").split()
        for field, some in sides.items():
            for side in (int(each) for each in some if each.isdecimal()):
                wrong += unsupported_resolution(side, family_about(self.name).title, self.size_step, field)
        return [Fault(path, f"{path} {sentence}.") for path, sentence in wrong]


def unknown_family(name: str) -> list[Fault]:
    """An error unless a family may have this name: a built-in one, or a file, which another machine may have."""
    if not name or name.endswith(".py") or name in (*family_names(), PROGRAM):
        return []
    return [Fault("family", f"family: there is no model family {name!r}.", "one of the list, or a Python file (.py)")]


def load_declaration(name: str) -> FamilyDeclaration:
    """Load the declaration from the family, or from the cache if its files are unchanged. Slow; raises ConfigError.

    A Python file of the user runs for it: raises CodeNotTrusted if that was not allowed.
    """
    is_file = name.endswith(".py")
    file = Path(name) if is_file else _FAMILIES / f"{name}.py"
    sources = [file, *_FAMILIES.rglob("*.py"), *_FACTS.rglob("*.py")]
    if is_file:
        files = read_with_imports(file)
        require_trusted(files)
        sources += [each.path for each in files]
    try:
        newest = max(source.stat().st_mtime_ns for source in sources)
        stamp = f"{file.resolve()}:{newest}:{file.stat().st_size}"
    except OSError:
        wrong = f"There is no file {name}." if is_file else f"No model family is called {name!r}."
        raise ConfigError(wrong, _ADVICE) from None
    cache = _load_cache()
    if stamp in cache:
        with suppress(ConfigError):  # a damaged cache
            return _parse(name, cache[stamp])
    described = _run_describe(str(file.absolute()) if is_file else name)
    declaration = _parse(name, described)
    _save_cache({**cache, stamp: described})
    return declaration


def _run_describe(name: str) -> str:
    command = [sys.executable, "-m", "modules.families.describe", name]
    root = ROOT
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{family_about(name).title} did not report its options within {TIMEOUT_S} seconds: this machine may be "
            "busy.",
            "Try again when other programs need it less.",
        ) from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(lines[-1] if lines else f"{name} exited with code {done.returncode}.")
    return done.stdout


def _parse(name: str, text: str) -> FamilyDeclaration:
    try:
        data: Any = decode_json(text)
        model = build_section(data["options"])
        methods = tuple(str(method) for method in data["methods"])
        parts = tuple(str(part) for part in data["parts"])
        size_step, brings_data = int(data["size_step"]), bool(data.get("brings_data"))
        if size_step < 1:
            raise ValueError(f"its size_step is {size_step}")
        draws_samples, about = bool(data.get("draws_samples", True)), str(data.get("about", ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"The options reported by {name} cannot be read: {error}.") from None
    return FamilyDeclaration(
        name, methods, parts, _with_group_path(model), model, size_step, brings_data, draws_samples, about
    )


def _with_group_path(model: type[Section]) -> tuple[Option, ...]:
    """The options with their paths in a config."""

    def inside(condition: str | None) -> str | None:
        terms = [
            f"!family_options.{t[1:]}" if t[0] == "!" else f"family_options.{t}"
            for t in (condition or "").split(" & ")
            if t
        ]
        return " & ".join(terms) or None

    return tuple(
        replace(option, path=f"family_options.{option.path}", depends_on=inside(option.depends_on))
        for option in options(model)
    )


def _load_cache() -> dict[str, str]:
    try:
        data = read_own(_cache_file())
    except (OSError, FileFault):
        return {}
    return {str(k): str(v) for k, v in data.items()} if isinstance(data, dict) else {}


def _save_cache(cache: dict[str, str]) -> None:
    newest = dict(list(cache.items())[-50:])
    write_private(_cache_file(), json.dumps(newest))


def _cache_file() -> Path:
    return preferences_file().with_name("families.json")

"""What a model family declares about itself, asked of a child process: the window loads no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from app import texts
from app.preferences import preferences_file
from modules.config import ConfigError, Fault, Option, Section, faults, options, uneven_resolution, unknown_parts
from modules.config.described import section_of

FAMILIES = Path(__file__).resolve().parents[1] / "modules" / "families"
PATIENCE_S = 120


@dataclass(frozen=True)
class FamilyDescription:
    """The methods, the parts and the options of one family."""

    name: str
    methods: tuple[str, ...]
    parts: tuple[str, ...]  # of its model; none where all of it is trained
    options: tuple[Option, ...]
    model: type[Section]
    size_step: int  # sides of pictures are multiples of it

    @property
    def defaults(self) -> dict[str, object]:
        """What the options are where a file does not mention them."""
        return {option.name: option.default for option in self.options if not option.required}

    def check(self, given: dict[str, object]) -> tuple[object, list[Fault]]:
        """The options in use as they belong into a file, and what is wrong with them."""
        try:
            complete = self.model.model_validate(given).model_dump(mode="json")
        except ValidationError as error:
            return given, faults(error, self.model, "family_options")
        return {name: complete[name] for name in given}, []

    def check_others(self, data: Mapping[str, object]) -> list[Fault]:
        """What the family cannot do of the other settings; names of parts that are still empty are not judged here."""
        listed, resolution = data.get("parts"), data.get("resolution")
        items = listed if isinstance(listed, list) else []
        named = [item.get("part") if isinstance(item, dict) else None for item in items]
        wrong = [each for each in unknown_parts(named, self.name, self.parts) if named[int(each[0].split(".")[1])]]
        side = int(resolution) if isinstance(resolution, str) and resolution.isdecimal() else resolution
        wrong += uneven_resolution(side, self.name, self.size_step)
        return [Fault(path, f"{path} {sentence}.") for path, sentence in wrong]


def family_names() -> list[str]:
    """The built-in families, by their files; whether one really is a family is asked when it is chosen."""
    found = sorted(file.stem for file in FAMILIES.glob("*.py") if not file.name.startswith("_"))
    return [name for name in found if name not in ("family", "describe")]


def describe_family(name: str) -> FamilyDescription:
    """Ask the family, or look up what it said while its file was the same; ConfigError with its reason. Slow."""
    file = Path(name) if name.endswith(".py") else FAMILIES / f"{name}.py"
    try:
        newest = max(source.stat().st_mtime_ns for source in (file, *FAMILIES.rglob("*.py")))
        stamp = f"{file.resolve()}:{newest}:{file.stat().st_size}"
    except OSError:
        raise ConfigError(texts.FAMILY_NO_FILE.format(name=name, file=file.name), _advice()) from None
    kept = _kept()
    if stamp not in kept:
        kept = {**kept, stamp: _ask(name)}
        _keep(kept)
    return _read(name, kept[stamp])


def _ask(name: str) -> str:
    command = [sys.executable, "-m", "modules.families.describe", name]
    root = FAMILIES.parents[1]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, encoding="utf-8", errors="replace", timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(texts.FAMILY_SILENT.format(name=name, seconds=PATIENCE_S)) from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(lines[-1] if lines else texts.FAMILY_ENDED.format(name=name, code=done.returncode))
    return done.stdout


def _read(name: str, text: str) -> FamilyDescription:
    try:
        said = json.loads(text)
        model = section_of(said["options"])
        methods = tuple(str(method) for method in said["methods"])
        parts = tuple(str(part) for part in said["parts"])
        size_step = int(said["size_step"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(texts.FAMILY_UNREADABLE.format(name=name, error=error)) from None
    return FamilyDescription(name, methods, parts, _in_their_group(model), model, size_step)


def _in_their_group(model: type[Section]) -> tuple[Option, ...]:
    """The options with the paths that they have in a config."""

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


def _advice() -> str:
    return texts.FAMILY_BUILT_IN.format(names=", ".join(family_names()))


def _kept() -> dict[str, str]:
    try:
        data = json.loads(_cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in data.items()} if isinstance(data, dict) else {}


def _keep(said: dict[str, str]) -> None:
    newest = dict(list(said.items())[-50:])
    try:
        _cache_file().parent.mkdir(parents=True, exist_ok=True)
        _cache_file().write_text(json.dumps(newest), encoding="utf-8")
    except OSError:
        return


def _cache_file() -> Path:
    return preferences_file().with_name("families.json")

"""What a new thing touches is what CONTRIBUTING.md says: each is added to a copy of the program, which is then used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config import TrainConfig, find_option
from modules.run import RunFolder
from tests.conftest import draw_images
from tests.families.tiny_pipelines import tiny_sd
from tests.runs import ROOT, Run, environment

OPTIMIZER = '''
class Adamax(Optimizer):
    """Adam by the largest gradient."""

    section_title: ClassVar[str] = "Adamax by name"
    implementation: ClassVar[str] = "torch.optim:Adamax"

    name: Literal["adamax"] = "adamax"
    weight_decay: float = weight_decay_setting(0.0)


def _name('''
SETTING = """    count_every: Interval = setting(
        Interval.never(), title="Count every", help="How often the weights are counted."
    )
    log_every:"""
ACTION = '''"""Counts the weights, and fails at the second step."""

from modules.training.actions.action import Action


def _compute(context):
    if context.position.step == 2:
        raise ValueError("no more numbers")
    yield sum(weight.numel() for weight in context.components.weights.model.parameters())


def _write(context, count):
    (context.components.folder.path / "count.txt").write_text(str(count))


COUNT = Action("count", "count_every", False, _compute, _write, phase="counting", is_optional=True)
'''
IMPORTER = '''"""The settings of a trainer called Lab."""

from modules.importers.rules import Rule, Table

TRAINER = "Lab"
TABLES = {"settings": Table((Rule("lab_steps", "max_steps", 100, int),))}


def recognises(data):
    return isinstance(data, dict) and "lab_steps" in data


def translate(data, translation):
    translation.apply(TABLES["settings"], data)
'''
PAGE = """from app.form.cards import Card
from app.sections.form_section import FormSection


class Section(FormSection):
    name = "lab"
    cards = (Card("Counting", ("count_every",), 0),)
"""
FILES = {
    "modules/training/actions/count.py": ACTION,
    "modules/importers/lab.py": IMPORTER,
    "app/sections/lab.py": PAGE,
}
LINES = [
    ("modules/config/sections/optimizers.py", "\ndef _name(", OPTIMIZER),
    ("modules/config/sections/output.py", "    log_every:", SETTING),
    ("app/sections/output.py", '"log_every",', '"log_every", "count_every",'),
    ("modules/training/actions/__init__.py", "= (", "= (COUNT, "),
    (
        "modules/training/actions/__init__.py",
        "from modules.training.actions.custom",
        "from modules.training.actions.count import COUNT\nfrom modules.training.actions.custom",
    ),
    ("modules/diffusion/losses.py", '"min_snr", "debiased"]', '"min_snr", "debiased", "by_half"]'),
    ("modules/diffusion/losses.py", "    return torch.ones_like(snr)", "    return torch.full_like(snr, 0.5)"),
    ("modules/importers/trainers.py", "kohya, musubi,", "kohya, lab, musubi,"),
    ("modules/importers/trainers.py", "_FILES = {\n", '_FILES = {\n    lab: "a job",\n'),
    ("app/sections/__init__.py", '    "tools": ', '    "lab": ("Laboratory", "Counting."),\n    "tools": '),
    ("app/widgets/icons.py", '    "model": ', '    "lab": ["d 12,12 9"],\n    "model": '),
]
WINDOW = """
import json, sys
from pathlib import Path
from app.main_window import MainWindow
from app.preferences import Preferences
from modules.importers import import_file

Preferences(welcomed=True, advanced=True).save()
window = MainWindow()
window.geometry("1280x800+0+0")


def settle():
    window.update()
    while window.state_.slices.is_busy:
        window.update()


def words(widget):
    shown = [str(widget.cget("text"))] if widget.winfo_class() == "Label" and widget.winfo_viewable() else []
    return shown + [each for child in widget.winfo_children() for each in words(child)]


shown = {}
for name in ("training", "output", "lab"):
    window.show_section(name)
    settle()
    shown[name] = words(window.sections[name])
fields = window.sections["training"].blocks
menu = next(field.control for block in fields for field in block.fields.values() if field.path == "optimizer.name")
shown["optimizers"] = menu._titles
shown["side"] = words(window.sidebar)
Path("job.json").write_text('{"lab_steps": 7}')
shown["imported"] = import_file("job.json").config.max_steps
window.destroy()
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with all of them."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("app", "modules", "scripts", "tandem"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for name, old, new in LINES:
        text = (folder / name).read_text()
        assert text.count(old) == 1, f"{name}: {old}"
        (folder / name).write_text(text.replace(old, new))
    return folder


def run_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, *words]
    done = subprocess.run(argv, cwd=folder, env=environment(), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_a_run_uses_them(copy: Path, tmp_path: Path) -> None:
    """The action's error at its second step costs the run only that count."""
    (tmp_path / "images").mkdir()
    config = {
        "family": "stable_diffusion",
        "base_model": str(tiny_sd(tmp_path / "base")),
        "concepts": [{"path": str(draw_images(tmp_path / "images", 2))}],
        "resolution": 64,
        "optimizer": "adamax",
        "family_options": {"loss_weighting": "by_half"},
        "count_every": "1 steps",
        "max_steps": 3,
        "runs_dir": str(tmp_path / "runs"),
        "cache_dir": str(tmp_path / "cache"),
        "run_name": "x",
        "device": "cpu",
    }
    (tmp_path / "c.json").write_text(json.dumps(config))
    done = run_in(copy, "scripts/train.py", "--config", str(tmp_path / "c.json"))
    said = done.stdout + done.stderr
    assert "Step 2: an error on rank 0" in said
    assert "no more numbers" in said
    run = Run(RunFolder(tmp_path / "runs" / "x"))
    assert int((run.folder.path / "count.txt").read_text()) > 1000
    assert len(run.losses) == 3


def test_the_window_shows_them(copy: Path, display: str) -> None:
    shown = json.loads(run_in(copy, "-c", WINDOW).stdout.splitlines()[-1])
    assert shown["optimizers"]["adamax"] == "Adamax by name"
    assert "Count every" in shown["output"]
    assert {"Laboratory", "Counting"} <= {*shown["lab"], *shown["side"]}
    assert shown["imported"] == 7
    assert find_option(TrainConfig, "count_every") is None, "only the copy has it"

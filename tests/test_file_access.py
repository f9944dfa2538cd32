"""Files that may be foreign are opened by modules/files alone: elsewhere only by the places that are listed here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.runs import ROOT

OWN = "written by this process or program, in a new folder or under a name of its own"
CHECKED = "by a library, after modules/files has found a regular file"
# file -> (uses, why they may be there)
ALLOWED = {
    "app/child_program.py": (["open"], OWN),
    "app/generate/chosen.py": (["shutil.copyfile"], "of an image that the window shows, as it is"),
    "app/runs/comfyui.py": (["shutil.copyfile"], "of regular files, as they are"),
    "app/toolkit.py": (["shutil.copyfile"], "of the installed customtkinter"),
    "app/tools/line_program.py": (["open"], OWN),
    "modules/checkpoint/backup_files.py": (["load_file"], CHECKED),
    "modules/checkpoint/backups.py": (["os.open"], "a folder, to sync it"),
    "modules/checkpoint/manage_backups.py": (["open"], OWN),
    "modules/checkpoint/stored_tensors.py": (["mmap.mmap", "safe_open"], f"memory without a file; {CHECKED}"),
    "modules/checkpoint/verified_write.py": (["mmap.mmap"], "memory without a file"),
    "modules/checkpoint/foreign_files.py": (["shutil.copy2"], "regular files and links, as they are"),
    "modules/checkpoint/formats/folder_copy.py": (["shutil.copyfile"], "regular files, as they are"),
    "modules/data/cache/reader.py": (["safe_open"], CHECKED),
    "modules/data/cache/shards.py": (["open", "os.open"], f"{OWN}; a folder, to sync it"),
    "modules/data/index/column_store.py": (["np.memmap"], CHECKED),
    "modules/diffusion/base_model_files.py": (["safe_open"], CHECKED),
    "modules/diffusion/model_files/gguf_file.py": (["mmap.mmap"], "of what modules/files has opened"),
    "modules/diffusion/safetensors_reader.py": (["safe_open"], CHECKED),
    "modules/diffusion/flow_pipeline.py": (["shutil.copyfile", "shutil.copytree"], CHECKED),
    "modules/distributed/file_transfer.py": (["open"], OWN),
    "modules/distributed/shared_memory.py": (["mmap.mmap"], "memory without a file"),
    "modules/families/_custom.py": (["load_file"], CHECKED),
    "modules/families/classifier.py": (["load_file"], CHECKED),
    "modules/files/images.py": (["Image.open"], "on what this package has opened"),
    "modules/files/private.py": (["os.open"], "a new file"),
    "modules/files/opening.py": (["os.open"], "the one reader"),
    "modules/files/shards.py": (["mmap.mmap"], "of a file that open_file has opened"),
    "modules/files/table_shards.py": (["mmap.mmap"], "of a file that open_regular has opened"),
    "modules/files/trash.py": (["os.open"], "a new file"),
    "modules/files/writing.py": (["os.open", "shutil.rmtree"], "the one place for writing into foreign folders"),
    "modules/machine/host.py": (["read_text"], "of the system: /proc and cgroups"),
    "modules/machine/process_load.py": (["read_text"], "of the system: /proc"),
    "modules/machine/torch_build.py": (["read_text"], "of the installed torch"),
    "modules/preflight/disk.py": (["open"], OWN),
    "modules/run/batch_size/start.py": (["shutil.copy2"], "of regular files, to a folder of its own"),
    "modules/run/console.py": (["os.open"], "/dev/null"),
    "modules/run/debug_package/contents.py": (["zipfile.ZipFile"], f"a new file, {OWN}"),
    "modules/run/folder/failures.py": (["open"], "opened for reading and writing, a pipe raises"),
    "modules/run/folder/folder_guard.py": (["shutil.rmtree"], "of a folder that is no link"),
    "modules/run/join/join_line.py": (["os.open"], "a new file"),
    "modules/run/join/same_run.py": (["os.open"], "a new file"),
    "modules/run/remote/far_files.py": (["open", "shutil.rmtree"], "its own folder there"),
    "modules/run/remote/far_followed.py": (["open"], "its own folder there"),
    "modules/run/remote/far_locks.py": (["open", "os.open"], "its own folder there"),
    "modules/run/remote/far_part.py": (["open"], "Tandem's own folder there"),
    "modules/run/remote/far_runs.py": (["shutil.rmtree"], "its own folder there"),
    "modules/run/remote/far_sent.py": (["open", "shutil.rmtree"], "its own folder there"),
    "modules/run/remote/far_side.py": (["open"], "its own folder there"),
    "modules/run/remote/slurm_jobs.py": (["open"], "its own folder there"),
    "modules/run/preflight_report/start.py": (["open"], OWN),
    "modules/training/device/pinned_memory.py": (["mmap.mmap"], "memory without a file"),
    "scripts/common.py": (["os.open", "read_text"], "/dev/null; pages of Tandem's own documentation"),
    "scripts/gpu_cells.py": (["open", "read_text"], OWN),
    "scripts/gpu_check.py": (["read_text"], "Tandem's own requirements.lock"),
    "scripts/gpu_modes.py": (["read_text"], OWN),
    "scripts/gpu_worker.py": (["os.open"], "/dev/null"),
    "scripts/install.py": (["open", "read_bytes", "read_text", "shutil.copyfile", "shutil.rmtree"], "its own"),
    "scripts/demo_shapes.py": (["shutil.rmtree"], "a folder that the scripts made"),
    "scripts/submit_slurm.py": (["shutil.rmtree"], "a folder that it has just made"),
}  # fmt: skip
_FUNCTIONS = {
    "open", "safe_open", "load_file", "os.open", "io.open", "codecs.open", "json.load", "tomllib.load", "np.load",
    "np.memmap", "np.fromfile", "np.loadtxt", "tarfile.open", "zipfile.ZipFile", "gzip.open", "mmap.mmap",
    "linecache.getlines", "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.rmtree",
    "Image.open", "sqlite3.connect",
}  # fmt: skip
_READING = ("read_text", "read_bytes")
_NAMES = re.compile(rf"\b({'|'.join(sorted({name.rpartition('.')[2] for name in (*_FUNCTIONS, *_READING)}))})\s*\(")
_MODE = re.compile(r"[rwxabt+]{1,4}")


def direct_uses(source: str) -> list[str]:
    """What opens a file, copies one, or removes a folder, without modules/files."""
    if not _NAMES.search(source):
        return []  # most files; reading their syntax takes seconds
    return sorted({name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) for name in _used(node)})


def _used(call: ast.Call) -> Iterator[str]:
    if not isinstance(call.func, (ast.Name, ast.Attribute)):
        return
    name = ast.unparse(call.func)
    if name in _FUNCTIONS:
        yield name
    elif isinstance(call.func, ast.Attribute):
        receiver = ast.unparse(call.func.value)
        if call.func.attr in _READING and receiver != "files":  # the package itself
            yield call.func.attr
        elif call.func.attr == "open" and receiver != "self" and _is_mode(call):
            yield "open"


def _is_mode(call: ast.Call) -> bool:
    """Whether these are the arguments of Path.open: none, or a mode."""
    given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "mode")]
    if not given:
        return not call.keywords or any(word.arg in ("encoding", "buffering") for word in call.keywords)
    return all(isinstance(each, ast.Constant) and _MODE.fullmatch(str(each.value)) is not None for each in given)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("with open(path) as file:\n    file.read()", ["open"]),
        ("Path(name).read_text('utf-8')", ["read_text"]),
        ("(folder / 'x').open('rb')", ["open"]),
        ("path.open(encoding='utf-8')", ["open"]),
        ("path.open(mode='w')", ["open"]),
        ("def f():\n    return json.load(open_regular(x))", ["json.load"]),
        ("np.load(x), np.memmap(x)", ["np.load", "np.memmap"]),
        ("shutil.rmtree(x)\nshutil.copy(a, b)", ["shutil.copy", "shutil.rmtree"]),
        ("RunFolder.open(runs_dir, name)\nself.open()\nbrowser.open(file)", []),
        ("read_text(path)\nfiles.read_text(path)\njson.loads(x)\nopen_regular(path)", []),
    ],
)
def test_the_search_itself(source: str, found: list[str]) -> None:
    assert direct_uses(source) == found


@pytest.mark.slow
def test_files_are_opened_by_modules_files() -> None:
    """Use open_regular, read_text, read_json, file_size, open_for_writing or remove_tree of modules.files instead."""
    files = sorted(file for folder in ("modules", "app", "scripts", "tandem") for file in (ROOT / folder).rglob("*.py"))
    uses = {file.relative_to(ROOT).as_posix(): direct_uses(file.read_text("utf-8")) for file in files}
    assert {file: found for file, found in uses.items() if found} == {file: uses for file, (uses, _) in ALLOWED.items()}

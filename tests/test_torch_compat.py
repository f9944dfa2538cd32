"""Private and version-bound names of torch are in modules/torch_compat.py alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("app", "benchmarks", "examples", "modules", "scripts", "tandem")
COMPAT = ROOT / "modules" / "torch_compat.py"
ALLOWED = ("torch._foreach_",)  # documented as torch's foreach operators
ROOTS = ("torch", "dist", "nn")


@pytest.mark.slow
def test_private_names_are_in_one_module() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for place in PLACES
        for path in (ROOT / place).rglob("*.py")
        if path != COMPAT
        for name in private_names(path.read_text(encoding="utf-8"))
    }
    assert not found


WITHOUT_COMPILER = """
import sys, torch
from modules.torch_compat import TorchDispatchMode, leave_out_compiler
from modules.training.memory.live_bytes import LiveBytes

def trained():
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    with LiveBytes():
        return model.module.weight.detach() * 1

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
leave_out_compiler()
without = trained()
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules
compiled = torch.compile(lambda x: x.sin() + 1, backend="eager", fullgraph=True)
assert torch.equal(compiled(torch.ones(2)), torch.ones(2).sin() + 1)
assert torch._dynamo is sys.modules["torch._dynamo"] and torch.equal(trained(), without)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_what_compiles_nothing_imports_no_compiler() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_COMPILER], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from torch._C._distributed_c10d import Store", ["torch._C._distributed_c10d"]),
        ("import torch._dynamo", ["torch._dynamo"]),
        ("from torch.nn import _reduction", ["torch.nn._reduction"]),
        ("torch._C._current_graph_task_id()", ["torch._C._current_graph_task_id"]),
        ("dist.distributed_c10d._set_pg_timeout(limit)", ["dist.distributed_c10d._set_pg_timeout"]),
        ("torch._foreach_zero_(tensors)\nself._store.get()\ntorch.zeros(1)", []),
        ("import_module('torch._inductor')", ["torch._inductor"]),
    ],
)
def test_private_names_are_noticed(source: str, names: list[str]) -> None:
    assert sorted(set(private_names(source))) == names


def private_names(source: str) -> Iterator[str]:
    """Dotted names of torch with a part that begins with an underscore: imported, used, or in a text."""
    if not re.search(r"(torch|dist|nn)[\w.]*(\._| import)", source):
        return  # parsing a thousand files takes seconds
    tree = ast.parse(source)
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        for name in names_in(node) if node not in inner else ():
            first, *others = name.split(".")
            if first in ROOTS and any(map(is_private, others)) and not name.startswith(ALLOWED):
                yield name


def names_in(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            whole = [f"{module}.{alias.name}" for alias in names]
            return [module] if any(map(is_private, module.split("."))) else whole
        case ast.Attribute() | ast.Constant(value=str()):
            text = str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)
            return [text] if re.fullmatch(r"\w+(\.\w+)+", text) else []
    return []


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")

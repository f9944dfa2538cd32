"""torch's compiler is imported by what compiles, and then as if it had been imported at once."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec

import torch

from modules.distributed.deferred_compiler import COMPILER, DDP_MODE, _Deferral
from tests.runs import ROOT

PROGRAM = """
import sys
import torch
from torch.optim import AdamW, Optimizer
from modules.distributed.deferred_compiler import COMPILER, DDP_MODE, defer_compiler

def trained(step=lambda optimizer: optimizer.step()):
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    optimizer = AdamW(net.parameters())
    for _ in range(2):
        net(torch.ones(2, 3)).sum().backward()
        step(optimizer)
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    return net.weight

finders = list(sys.meta_path)
version, torch.__version__ = torch.__version__, "2.14.0"  # whose functions may ask for something else
defer_compiler()
assert sys.meta_path == finders
torch.__version__ = version
defer_compiler()
deferred = trained()
assert COMPILER not in sys.modules and "_dynamo" not in vars(torch)
answered = vars(Optimizer.zero_grad.__wrapped__)
assert answered["__dynamo_disable"] is Optimizer.zero_grad.__wrapped__

import torch._dynamo.config as settings  # as a user's file may, or torch.compile

assert sys.meta_path == finders
assert sys.modules[COMPILER] is torch._dynamo
assert settings is torch._dynamo.config is sys.modules[COMPILER + ".config"]
assert torch._dynamo.utils.get_optimize_ddp_mode() == DDP_MODE
assert "__dynamo_disable" not in answered
torch.testing.assert_close(trained(torch.compile(lambda optimizer: optimizer.step(), backend="eager")), deferred)
assert answered["__dynamo_disable"] is not Optimizer.zero_grad.__wrapped__
"""


def test_only_what_compiles_imports_it() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, check=True, timeout=120)


def test_a_known_function_that_asks_for_something_new_gets_it_from_the_compiler() -> None:
    finder = _Deferral()
    answer = finder.create_module(ModuleSpec(COMPILER, finder))
    finder.exec_module(answer)
    assert answer.utils.get_optimize_ddp_mode() == DDP_MODE
    assert answer.utils.counters is torch._dynamo.utils.counters
    assert answer.reset is torch._dynamo.reset

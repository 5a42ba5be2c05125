"""Programs of libraries (`examples/pytorch`) on Tenure's allocator and a simulated device.

Kernels compute nothing there, but what is allocated, copied and freed is what it is on a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/pytorch"

if not EXAMPLES.is_dir():
    pytest.skip("the examples are not here", allow_module_level=True)

MIB = 1 << 20

#: The programs, and what they import.
PROGRAMS = {
    "trainer": ["accelerate", "transformers"],
    "generate": ["transformers"],
    "accelerate_loop": ["accelerate"],
    "lora": ["peft", "transformers"],
    "lightning_module": ["lightning"],
    "vit": ["timm"],
    "resnet": ["torchvision"],
    "gcn": ["torch_geometric"],
}

# Runs a program, and says what is left of it. No part of cuDNN is simulated.
RUN = """
import gc, json, runpy, sys
import torch
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
gc.collect()
torch._C._cuda_clearCublasWorkspaces()
stats = torch.cuda.memory_stats()
print(json.dumps({
    "requested": stats["requested_bytes.all.peak"], "reserved": stats["reserved_bytes.all.peak"],
    "left": stats["allocated_bytes.all.current"], "retries": stats["num_alloc_retries"],
}))
"""


def run(program: str, folder: Path, *starter: str, options: tuple[str, ...] = ()) -> str:
    for library in PROGRAMS.get(program, []):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    command = [sys.executable, *starter, str(EXAMPLES / f"{program}.py"), "--small", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "allocator: paged" in done.stdout and "does not work" not in done.stdout, done.stdout
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_library_s_program_holds_little_more_than_it_asks_for_and_keeps_nothing(program: str, tmp_path: Path) -> None:
    figures: dict[str, Any] = json.loads(run(program, tmp_path, "-c", RUN).splitlines()[-1])
    assert figures["requested"] > 0 and figures["retries"] == 0
    assert figures["reserved"] <= max(1.01 * figures["requested"], figures["requested"] + 64 * MIB)
    assert figures["left"] <= MIB


def test_ddp_and_fsdp_train_in_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_CUDART_DEVICES", "2")
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    said = run("distributed", tmp_path, *torchrun, options=("--backend", "gloo"))
    assert said.count("DDP: loss") == said.count("FSDP2: loss") == 2

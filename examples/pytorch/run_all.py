"""Runs the programs of this folder, one after another, and prints what each reserved beside what it requested.

run_all.py                     # those whose libraries are installed, on the first GPU
run_all.py --small vit gcn     # these two, in seconds
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

#: The programs, and the libraries that they import.
PROGRAMS = {
    "trainer": ["accelerate", "transformers"],
    "generate": ["transformers"],
    "accelerate_loop": ["accelerate"],
    "lora": ["peft", "transformers"],
    "lightning_module": ["lightning"],
    "vit": ["timm"],
    "resnet": ["torchvision"],
    "gcn": ["torch_geometric"],
    "compiled": ["triton"],
    "distributed": [],
}

# A program that runs another one, and prints its memory figures.
MEASURED = """
import gc, json, runpy, sys
import torch
if "--simulated" in sys.argv:  # the simulated device has no part of cuDNN
    sys.argv.remove("--simulated")
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


def missing(program: str) -> list[str]:
    """Returns the libraries that a program needs and that are not installed."""
    return [library for library in PROGRAMS[program] if importlib.util.find_spec(library) is None]


def run(program: str, *options: str, folder: Path | None = None) -> tuple[str, dict[str, Any]]:
    """Runs a program. Returns its output, and its figures in bytes, which are missing for a program of several
    processes."""
    path, environment = str(HERE / f"{program}.py"), dict(os.environ)
    if program == "distributed":
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "gpu", path, *options]
    else:
        command = [sys.executable, "-c", MEASURED, path, *options]
        # With several devices, transformers would split its batches. The figures are those of the first device.
        environment["CUDA_VISIBLE_DEVICES"] = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{program} failed:\n{done.stderr[-4000:]}")
    return done.stdout, {} if program == "distributed" else json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)} (default all)")
    parser.add_argument("--small", action="store_true", help="with small models and few steps")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.programs) - set(PROGRAMS)):
        parser.error(f"there is no program {unknown[0]}: expected {', '.join(PROGRAMS)}")
    import torch

    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU: run this on a machine that has one")
    failed = 0
    for program in arguments.programs or PROGRAMS:
        if libraries := missing(program):
            print(f"{program:18} not run: {', '.join(libraries)} is not installed", flush=True)
            continue
        start = time.perf_counter()
        try:
            _, figures = run(program, *["--small"] * arguments.small)
        except RuntimeError as error:
            print(error, flush=True)
            failed += 1
            continue
        said = f"{program:18} {time.perf_counter() - start:6.1f} s"
        if figures:
            said += f", {figures['requested'] / 1e9:7.2f} GB requested, {figures['reserved'] / 1e9:7.2f} GB reserved"
        print(said, flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

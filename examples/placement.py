"""Places the tensors of a training step in DRAM and a slower tier: records, plans, and installs the mapping.

    python examples/placement.py

The slower tier here is a file in a temporary folder; on a machine with persistent memory, name a file there. The
program needs PyTorch on Linux, and no GPU.

Where `tenure agent serve --learn` runs, `tenure.plan.Agent(...).plan(problem)` plans instead. Its next mappings are
better after `agent.report(mapping, sum(kernels_ns), kernels_ns)`.
"""

import sys
import tempfile
from pathlib import Path

try:
    import torch

    import tenure.plan
    import tenure.torch
except ImportError as error:
    sys.exit(f"placement.py: {error}: install it")

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step() -> None:
    optimizer.zero_grad()
    model(torch.randn(64, 256)).sum().backward()
    optimizer.step()


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    with tenure.torch.record() as recording, tenure.torch.tag(model, optimizer):
        step()
        recording.begin_iteration()
        step()
    recording.write(folder / "problem.json", name="two layers")
    problem = tenure.plan.Problem.load(folder / "problem.json")
    dram = {"name": "DRAM", "capacity": problem.peak_bytes // 2, "read_bandwidth": 10**11, "write_bandwidth": 10**11}
    slow = {"name": "slow", "read_bandwidth": 3 * 10**10, "write_bandwidth": 8 * 10**9}
    problem = problem.with_tiers([dram, slow])
    mapping = tenure.plan.plan(problem, seconds=1)
    mapping.save(folder / "mapping.json")
    print(mapping.planned)
    tiers = {"DRAM": "dram@1GiB", "slow": f"{folder}/@1GiB"}
    placement = tenure.torch.install(device="cpu", mapping=folder / "mapping.json", tiers=tiers)
    with placement, tenure.torch.tag(model, optimizer):
        step()
        print(placement)
        placement.measure(problem)
        for _ in range(10):
            placement.begin_iteration()
            step()
        kernels_ns = placement.kernel_times()
    print(f"{len(kernels_ns)} kernels took {sum(kernels_ns) / 1e6:.3f} ms a step")

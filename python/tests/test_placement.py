"""PyTorch's tensors on the CPU, placed in memory tiers by a mapping."""

from __future__ import annotations

import gc
import json
import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure  # noqa: E402
import tenure.plan  # noqa: E402
import tenure.torch  # noqa: E402

STEPS = 4


@pytest.fixture(autouse=True)
def _without_tensors_of_earlier_tests() -> None:
    """Reports count all memory of the process, and exceptions of earlier tests may hold tensors."""
    gc.collect()


def model_and_optimizer() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(entered: Any = None, steps: int = STEPS) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the losses, to the bit, and reports taken between forward and backward."""
    model, optimizer = model_and_optimizer()
    losses, reports = [], []

    def step(number: int) -> None:
        if isinstance(entered, tenure.torch.Recording):
            entered.begin_iteration()
        images = torch.arange(128, dtype=torch.float32).sin().add(number).view(2, 1, 8, 8)
        loss = torch.nn.functional.cross_entropy(model(images), torch.tensor([1, 3]))
        if isinstance(entered, tenure.torch.Placement):
            reports.append(entered.report())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())

    if entered is None:
        for number in range(steps):
            step(number)
    else:
        with entered, tenure.torch.tag(model, optimizer):
            for number in range(steps):
                step(number)
    return losses, reports


def write_mapping(path: Path, places: dict[str, int]) -> Path:
    content = {"format": "tenure-mapping", "version": 1, "program": "small", "tiers": ["DRAM", "PM"], "places": places}
    path.write_text(json.dumps(content))
    return path


def tiers(folder: Path) -> dict[str, str]:
    return {"DRAM": "dram@32MiB", "PM": f"{folder}/@32MiB"}


def bytes_of(report: dict[str, Any], tier: int, tag: str) -> dict[str, int]:
    found: dict[str, int] = report["tiers"][tier]["tags"].get(tag, {"bytes": 0, "verified": 0})
    return found


def test_a_training_run_follows_its_mapping_and_learns_the_same(tmp_path: Path) -> None:
    plain, _ = train()
    recording = tenure.torch.record()
    assert train(recording, steps=2)[0] == plain[:2]
    recording.write(tmp_path / "problem.json", name="small")
    problem = json.loads((tmp_path / "problem.json").read_text())
    keys = [tensor["key"] for tensor in problem["tensors"]]
    names = [kernel["name"] for kernel in problem["kernels"]]
    assert names[0] == "begin" and names.count("4/forward/out#0") == 1, "the second step alone"
    assert "0/parameter/weight#0" in keys and "4/forward/out#0" in keys

    # Weights and activations alternate between the two tiers.
    places: dict[str, int] = {}
    for tag in {tensor["tag"] for tensor in problem["tensors"]}:
        of_tag = [tensor["key"] for tensor in problem["tensors"] if tensor["tag"] == tag]
        places |= {key: number % 2 for number, key in enumerate(of_tag)}
    mapping = write_mapping(tmp_path / "mapping.json", places)
    placement = tenure.torch.install(device="cpu", mapping=mapping, tiers=tiers(tmp_path), strict=True)
    placed, reports = train(placement)

    assert placed == plain
    placement.check()
    assert len(reports) == STEPS
    for report in reports:
        for tag in ("weight", "activation"):
            for tier in (0, 1):
                found = bytes_of(report, tier, tag)
                assert found["bytes"] > 0 and found["verified"] == found["bytes"], (tag, report)
        assert report["verified_share"] == report["mapped_share"] == 1 and report["outside"] == {}, report
        assert report["keys"]["unmapped"] == [] and report["keys"]["missed"] == []
        assert report["is_emulated"] == ("EMULATED" in report["tiers"][1]["nature"])
    assert ("EMULATED" in str(placement)) == reports[0]["is_emulated"]


def test_each_kernel_of_the_recorded_problem_is_measured(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())

    def step(rows: int = 16) -> None:
        optimizer.zero_grad()
        model(torch.ones(rows, 64)).sum().backward()
        optimizer.step()

    with tenure.torch.record() as recording, tenure.torch.tag(model, optimizer):
        for _ in range(2):
            recording.begin_iteration()
            step()
    recording.write(tmp_path / "problem.json", name="small")
    problem = tenure.plan.Problem.load(tmp_path / "problem.json")
    mapping = write_mapping(tmp_path / "mapping.json", {})
    placement = tenure.torch.install(device="cpu", mapping=mapping, tiers=tiers(tmp_path))
    with placement, tenure.torch.tag(model, optimizer):
        step()
        with pytest.raises(tenure.Error, match="nothing is measured"):
            placement.kernel_times()
        placement.measure(problem)
        placement.begin_iteration()
        model(torch.ones(16, 64))
        with pytest.raises(tenure.Error, match="fewer allocations"):
            placement.kernel_times()
        for _ in range(3):
            placement.begin_iteration()
            step()
        kernels_ns = placement.kernel_times()
    assert len(kernels_ns) == len(problem.kernels)
    assert sum(kernels_ns) > 0


def test_a_thread_that_did_not_enter_is_not_placed(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {})
    placement = tenure.torch.install(device="cpu", mapping=mapping, tiers=tiers(tmp_path))

    def held() -> int:
        return sum(sum(tag["bytes"] for tag in tier["tags"].values()) for tier in placement.report()["tiers"])

    kept = []
    with placement:
        kept.append(torch.ones(1000))
        assert held() == 4000
        other = threading.Thread(target=lambda: kept.append(torch.ones(1000)))
        other.start()
        other.join()
        assert held() == 4000
        # Storages grow in their tier.
        kept[0].resize_(2000)
        assert held() == 8000
    kept.append(torch.ones(1000))
    assert held() == 8000
    kept.clear()
    assert held() == 0


def test_a_mismatch_is_reported_or_refused(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {"none/forward/out#0": 1})
    lax = tenure.torch.install(device="cpu", mapping=mapping, tiers=tiers(tmp_path))
    train(lax, steps=1)
    keys = lax.report()["keys"]
    assert keys["never_came"] == ["none/forward/out#0"] and "0/forward/out#0" in keys["unmapped"]
    with pytest.raises(tenure.Error, match="1 keys of the mapping never came"):
        lax.check()
    strict = tenure.torch.install(device="cpu", mapping=mapping, tiers=tiers(tmp_path), strict=True)
    with pytest.raises(RuntimeError, match="has no place for"):
        train(strict, steps=1)


def test_a_full_tier_is_out_of_memory(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {})
    small = {"DRAM": "dram@1MiB", "PM": f"{tmp_path}/@1MiB"}
    placement = tenure.torch.install(device="cpu", mapping=mapping, tiers=small)
    with placement, pytest.raises(torch.OutOfMemoryError, match='tier "DRAM"'):
        torch.ones(1 << 20)
    placement = tenure.torch.install(device="cpu", mapping=mapping, tiers=small, when_full="miss")
    with placement:
        blocks = [torch.ones(200_000) for _ in range(2)]
        assert placement.report()["keys"]["missed_bytes"] == 800_000
        del blocks


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": "cpu"}, "needs a mapping"),
        ({"device": "tpu"}, "expected 'cuda' or 'cpu'"),
        ({"mapping": "m", "tiers": {}}, "say device='cpu'"),
        ({"device": "cpu", "mapping": "none.json", "tiers": {}}, "none.json: No such file"),
        ({"device": "cpu", "mapping": "none.json", "tiers": {}, "fraction": 0.5}, "leave them out"),
        ({"device": "cpu", "mapping": "none.json", "tiers": {}, "when_full": "x"}, "expected 'refuse' or 'miss'"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(tenure.Error, match=words) as told:
        tenure.torch.install(**arguments)
    assert len(str(told.value).splitlines()) == 1


def test_mistakes_in_tiers_are_told(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {})
    for given, words in [
        ({"DRAM": "dram"}, r'\["DRAM", "PM"\], and \["DRAM"\] were opened'),
        ({"DRAM": "dram@1MiB", "PM": "memory"}, '"memory" is not a tier'),
        ({"DRAM": "dram@1MiB", "PM": f"{tmp_path}/@1048576TiB"}, "bytes free"),
    ]:
        with pytest.raises(tenure.Error, match=words):
            tenure.torch.install(device="cpu", mapping=mapping, tiers=given)


def test_weights_of_a_model_that_was_called_before_move_when_it_is_called_in_a_placement(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {"4/parameter/weight#0": 1})
    first, second = (tenure.torch.install(device="cpu", mapping=mapping, tiers=tiers(tmp_path)) for _ in range(2))
    model, _ = model_and_optimizer()
    images = torch.ones(2, 1, 8, 8)
    with tenure.torch.tag(model), torch.no_grad():
        expected = model(images)
        weights = sum(tensor.nbytes for tensor in model.state_dict().values())
        assert first.report()["outside"] == {"weight": weights}
        assert f"outside of all tiers: {weights} bytes, weight" in str(first)
        for placement, other in [(first, second), (second, first)]:
            with placement:
                assert model(images).equal(expected)
            report = placement.report()
            assert report["outside"] == {}
            assert bytes_of(report, 1, "weight")["verified"] == model[4].weight.nbytes
            # Bytes that the mapping does not name count as not verified.
            unmapped = weights - model[4].weight.nbytes
            assert bytes_of(report, 0, "weight") == {
                "bytes": unmapped,
                "verified": 0,
                "unmapped": unmapped,
                "missed": 0,
            }
            assert report["verified_share"] == 1 and report["unmapped_bytes"] == unmapped
            assert report["mapped_share"] == model[4].weight.nbytes / weights
            assert other.report()["outside"] == {"weight": weights}


def test_memory_that_others_have_stays_where_it_is_and_is_reported(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {})
    placement = tenure.torch.install(device="cpu", mapping=mapping, tiers=tiers(tmp_path))
    layers = [torch.nn.Linear(4, 4, bias=False) for _ in range(5)]
    view, processes, array, alias, tied = (layer.weight for layer in layers)
    view.data = torch.ones(2, 16)[0].view(4, 4)
    processes.share_memory_()
    numbers = array.detach().numpy()
    same = alias.detach()
    also = torch.nn.Linear(4, 4, bias=False)
    also.weight = tied
    model = torch.nn.Sequential(*layers, also)
    addresses = [weight.data_ptr() for weight in (view, processes, array, alias)]
    with placement, tenure.torch.tag(model), torch.no_grad():
        model(torch.ones(1, 4))
        report = placement.report()
        assert report["outside"] == {"weight": 128 + 3 * 64} and report["verified_share"] == 0
        # The two names share one tensor, whose bytes count once.
        assert bytes_of(report, 0, "weight")["bytes"] == tied.nbytes and also.weight is tied
        assert addresses == [weight.data_ptr() for weight in (view, processes, array, alias)]
        alias.fill_(3)
        assert same.eq(3).all() and processes.is_shared() and (numbers == array.numpy()).all()
        # The tensor moves once its storage has no other owner.
        del same
        model(torch.ones(1, 4))
        assert placement.report()["outside"] == {"weight": 128 + 2 * 64}
        assert alias.eq(3).all()


def test_a_thread_leaves_what_it_entered_itself(tmp_path: Path) -> None:
    placement = tenure.torch.install(
        device="cpu", mapping=write_mapping(tmp_path / "mapping.json", {}), tiers=tiers(tmp_path)
    )
    told: list[BaseException] = []

    def leave() -> None:
        try:
            placement.__exit__(None, None, None)
        except tenure.Error as error:
            told.append(error)

    with placement:
        other = threading.Thread(target=leave)
        other.start()
        other.join()
        assert "what a thread enters, it leaves itself" in str(told[0])


def test_files_of_a_placement_that_is_not_opened_are_removed(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {})
    for second in ("PM", "other"):
        given = {"DRAM": f"{tmp_path}/tier@1MiB", second: f"{tmp_path}/@1048576TiB" if second == "PM" else "dram@1MiB"}
        with pytest.raises(tenure.Error):
            tenure.torch.install(device="cpu", mapping=mapping, tiers=given)
        assert [path.name for path in tmp_path.iterdir()] == ["mapping.json"]


def test_free_memory_is_given_back(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {})
    placement = tenure.torch.install(device="cpu", mapping=mapping, tiers=tiers(tmp_path))
    with placement:
        kept = torch.ones(1000)
        torch.ones(1 << 20)
    placement.empty_cache()
    assert kept.eq(1).all()


def test_forked_workers_write_to_copies(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {})
    # Tensors that the mapping does not name live in the first tier, which is a file here.
    placement = tenure.torch.install(
        device="cpu", mapping=mapping, tiers={"DRAM": f"{tmp_path}/@32MiB", "PM": "dram@1MiB"}
    )
    with placement:
        shared = torch.zeros(1000)

        class Writes:
            def __len__(self) -> int:
                return 8

            def __getitem__(self, index: int) -> Any:
                return shared.add_(1).clone()

        loader = torch.utils.data.DataLoader(Writes(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        batches = torch.cat(list(loader))
        # Each of the two workers made two batches, and counted in its own memory.
        assert sorted(batches[:, 0].tolist()) == [1, 1, 2, 2, 3, 3, 4, 4]
        assert shared.eq(0).all()


def test_forked_workers_see_what_was_there_and_not_what_their_parent_writes_later(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {})
    placement = tenure.torch.install(
        device="cpu", mapping=mapping, tiers={"DRAM": f"{tmp_path}/@32MiB", "PM": "dram@1MiB"}
    )
    fork = multiprocessing.get_context("fork")
    is_written, answers = fork.Event(), fork.Queue()
    with placement:
        shared = torch.zeros(100_000)

        def look() -> None:
            torch.set_num_threads(1)  # The threads of PyTorch's are the parent's.
            is_written.wait()
            trouble = placement.report()["tiers"][0]["trouble"]
            answers.put((shared.eq(0).all().item(), torch.ones(1000).sum().item(), trouble))

        child = fork.Process(target=look, daemon=True)
        child.start()
        shared.fill_(1)
        is_written.set()
        assert answers.get(timeout=300) == (True, 1000, "a forked child has ordinary memory in its place")
        child.join()
        assert child.exitcode == 0 and shared.eq(1).all()


def test_a_program_that_closes_all_descriptors_keeps_its_tiers(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {})
    program = f"""
import os, torch, tenure.torch
placement = tenure.torch.install(
    device="cpu", mapping={str(mapping)!r}, tiers={{"DRAM": "{tmp_path}/tier@1MiB", "PM": "dram@1MiB"}}
)
with placement:
    shared = torch.ones(1000)
    os.closerange(3, 256)
    others = [open({str(tmp_path / "other")!r}, "w+") for _ in range(64)]
    if os.fork() == 0:
        os._exit(0 if shared.eq(1).all() else 1)
    assert os.wait()[1] == 0
    report = placement.report()
    assert report["tiers"][0]["trouble"] is None, report
del placement, shared
for other in others:
    other.write("still open")
    other.flush()
"""
    subprocess.run([sys.executable, "-c", program], check=True)

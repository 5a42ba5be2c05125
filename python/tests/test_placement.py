"""PyTorch's tensors on the CPU in tiers of memory, by a mapping."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure  # noqa: E402
import tenure.torch  # noqa: E402

STEPS = 4


def model_and_optimizer() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(entered: Any = None, steps: int = STEPS) -> tuple[list[str], list[dict[str, Any]]]:
    """The losses, to the bit, and reports from between forward and backward."""
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

    # Weights and activations are split: one after the other goes here and there.
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
        assert report["keys"]["unmapped"] == [] and report["keys"]["missed"] == []
        assert report["is_emulated"] == ("EMULATED" in report["tiers"][1]["nature"])
    assert ("EMULATED" in str(placement)) == reports[0]["is_emulated"]


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
        # Storages grow where they are placed.
        kept[0].resize_(2000)
        assert held() == 8000
    kept.append(torch.ones(1000))
    assert held() == 8000
    kept.clear()
    assert held() == 0


def test_what_does_not_match_is_reported_or_refused(tmp_path: Path) -> None:
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
        ({"DRAM": "dram@1MiB", "PM": "memory"}, '"memory" is no tier'),
        ({"DRAM": "dram@1MiB", "PM": f"{tmp_path}/@1048576TiB"}, "bytes free"),
    ]:
        with pytest.raises(tenure.Error, match=words):
            tenure.torch.install(device="cpu", mapping=mapping, tiers=given)


def test_forked_workers_write_to_copies(tmp_path: Path) -> None:
    mapping = write_mapping(tmp_path / "mapping.json", {})
    # What has no place lives in the first tier, which is a file here.
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
        # Two workers made two batches each, and counted for themselves.
        assert sorted(batches[:, 0].tolist()) == [1, 1, 2, 2, 3, 3, 4, 4]
        assert shared.eq(0).all()

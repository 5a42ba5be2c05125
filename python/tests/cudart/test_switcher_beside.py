"""A switcher without Tenure under PyTorch: weights lie beside the memory of PyTorch's own allocator."""

from __future__ import annotations

import os
import random
import threading

import pytest
import torch

import tenure
import tenure.torch

from .switching import CHUNK, MIB, OnHost, answer_of, computing, large, resnet


def opened(chunks: int) -> tenure.torch.Switcher:
    return tenure.torch.Switcher("cuda:0", device_bytes=chunks * CHUNK, host_bytes=1 << 30)


def test_answers_are_those_of_the_plain_module_on_any_stream() -> None:
    switcher = opened(5)
    with computing():
        made = {f"model {seed}": large(seed) for seed in range(4)} | {"resnet": resnet()}
        for module, _ in made.values():
            module.eval()
        expected = {name: answer_of(module, x) for name, (module, x) in made.items()}
        for name, (module, _) in made.items():
            switcher.add(name, module)
        order = random.Random(1)
        for turn in range(40):
            name = order.choice(list(made))
            x = made[name][1].cuda()
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream() if turn % 2 else torch.cuda.current_stream()):
                assert torch.equal(switcher(name, x).cpu(), expected[name]), (turn, name)
    assert torch.cuda.get_allocator_backend() == "native" and tenure.torch.status().mode == "not installed"
    assert 0 < switcher.report().peak_bytes <= 5 * CHUNK


def test_the_driver_has_all_memory_back_and_nothing_is_taken_for_tenures() -> None:
    torch.empty(1, device="cuda")
    before = torch.cuda.mem_get_info()[0]
    for _ in range(2):
        switcher = opened(4)
        model = switcher.add("model", large(layers=4)[0])
        model.load()
        assert torch.cuda.mem_get_info()[0] <= before - CHUNK
        switcher.sleep()
        assert torch.cuda.mem_get_info()[0] == before
        switcher.wake()
        switcher.close()
        assert torch.cuda.mem_get_info()[0] == before
    assert tenure.memory.installed() == []
    with pytest.raises(tenure.Error, match="CUDA has started already"):
        tenure.torch.install()


def test_pytorchs_cache_makes_room_and_what_it_needs_is_told() -> None:
    os.environ["TENURE_CUDART_CAPACITY"] = str(8 * CHUNK)
    switcher = opened(8)
    models = [switcher.add(str(seed), large(seed, layers=2, rows=CHUNK // 4)[0]) for seed in range(2)]
    # PyTorch keeps this memory in its cache when it is freed.
    del [torch.empty(7 * CHUNK, dtype=torch.uint8, device="cuda")][0]
    assert torch.cuda.memory_reserved() >= 7 * CHUNK
    models[0].load()
    assert torch.cuda.memory_reserved() < CHUNK
    held = torch.empty(5 * CHUNK, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        with pytest.raises(tenure.OutOfMemoryError, match="take a smaller device_bytes"):
            models[1].load()
        report = switcher.report()
        assert (report.taken_bytes, models[1]._native.resident_bytes) == (2 * CHUNK, 0)
    del held
    models[1].load()
    assert models[0].is_resident and models[1].is_resident


def test_two_threads_get_their_answers() -> None:
    switcher = opened(3)
    with computing():
        made = [large(seed) for seed in range(2)]
        expected = [answer_of(*one) for one in made]
        for seed, (module, _) in enumerate(made):
            switcher.add(str(seed), module)
        x = torch.zeros(1).cuda()
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()), OnHost():
                for _ in range(25):
                    if not torch.equal(switcher(str(number), x).cpu(), expected[number]):
                        wrong.append(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert switcher.report().switches >= 2 and MIB < switcher.report().peak_bytes <= 3 * CHUNK


def test_a_part_of_a_model_leaves_and_the_driver_has_it_back_when_it_is_trimmed() -> None:
    torch.empty(1, device="cuda")
    before = torch.cuda.mem_get_info()[0]
    switcher = opened(4)
    model = switcher.add("model", large(layers=4, rows=CHUNK // 4)[0], pinned=True)
    model.load()
    assert (model._native.room_bytes, model._native.resident_bytes) == (4 * CHUNK, 4 * CHUNK)
    model.evict(CHUNK + 1)
    assert not model.is_resident and model._native.resident_bytes == 2 * CHUNK
    assert torch.cuda.mem_get_info()[0] == before - 4 * CHUNK
    switcher.trim()
    assert torch.cuda.mem_get_info()[0] == before - 2 * CHUNK
    model.load()
    assert model.is_resident and switcher.report().copied_bytes > 4 * CHUNK
    model.evict()
    switcher.trim()
    assert torch.cuda.mem_get_info()[0] == before

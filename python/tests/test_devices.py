"""Devices, as the program `tenure devices` shows them."""

from __future__ import annotations

import dataclasses

import pytest

import tenure


def test_a_simulated_device_says_what_it_is() -> None:
    (device,) = tenure.devices("sim")
    assert device.number == 0
    assert device.error is None
    assert device.name == "Simulated H200"
    assert device.has_virtual_memory and device.shares_descriptors
    assert device.total_bytes is not None and device.free_bytes is not None
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.links == ()


def test_without_a_gpu_the_list_is_empty_and_says_why() -> None:
    devices = tenure.devices()
    assert (len(devices) == 0) == (devices.unavailable is not None)
    assert [device.number for device in devices] == list(range(len(devices)))


def test_the_host_is_there_too() -> None:
    cpu = tenure.devices("sim").cpu
    assert cpu.cores is not None and cpu.cores >= 1
    assert cpu.total_bytes is not None and cpu.total_bytes > 0


def test_a_listing_does_not_change() -> None:
    devices = tenure.devices("sim")
    with pytest.raises(dataclasses.FrozenInstanceError):
        devices[0].name = "another"  # type: ignore[misc]


def test_a_driver_that_is_not_known_is_named() -> None:
    with pytest.raises(ValueError, match='unknown driver "rocm": expected "sim" or "cuda"'):
        tenure.devices("rocm")  # type: ignore[arg-type]

"""What notebooks show: `_repr_html_` of tensors, modules and tables."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

import tenure
from tenure import _native, cuda, nn, trace


class Page(HTMLParser):
    """Checks that the tags match, and collects texts and cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("div", "pre", "table", "tr", "td", "th")
        # Colours would not suit both a light and a dark page.
        assert all(name == "style" and "color" not in str(value) for name, value in attrs)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_tensor_shows_its_elements_and_properties() -> None:
    x = tenure.arange(6, dtype=tenure.float32).reshape(2, 3).requires_grad_(True)
    text = Page(x._repr_html_()).text
    assert text == repr(x) + "shape (2, 3), tenure.float32, cpu, 24 B, requires a gradient"
    view = x.t()[1:]
    properties = "strides (1, 3), from element 1 of its storage, made by slice"
    assert Page(view._repr_html_()).text == f"{view!r}shape (2, 2), tenure.float32, cpu, 16 B, {properties}"


def test_a_large_tensor_shows_some_elements() -> None:
    html = tenure.zeros(3000, 4000)._repr_html_()
    assert "..." in html and len(html) < 2000
    assert "shape (3000, 4000), tenure.float32, cpu, 45.8 MiB" in html


def test_showing_a_tensor_changes_no_gradient() -> None:
    x = tenure.ones(3, requires_grad=True)
    y = x * 2
    version = y._version
    y._repr_html_()
    assert y.requires_grad and y._version == version
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3


@pytest.mark.own_process
def test_a_tensor_of_a_device_shows_its_properties_only_during_a_capture() -> None:
    _native.simulate_devices(1, 0)
    x = tenure.ones(3, device="cuda")
    assert Page(x._repr_html_()).text == f"{x!r}shape (3,), tenure.float32, cuda:0, 12 B"
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x + 1
        shown = y._repr_html_()
    assert Page(shown).text == "shape (3,), tenure.float32, cuda:0, 12 B"
    graph.replay()
    assert y.tolist() == [2.0] * 3


class Named(nn.Module):
    """A module with settings that are markup."""

    def extra_repr(self) -> str:
        return '<script>alert(1)</script> & "more"'


def test_a_module_shows_its_parameters_and_bytes() -> None:
    shared = nn.Linear(4, 3)
    model = nn.Sequential(shared, nn.BatchNorm1d(3), nn.Sequential(shared, Named()))
    shared.weight.requires_grad_(False)
    page = Page(model._repr_html_())
    head, *rows = page.rows
    assert head == ["Module", "Settings", "Own parameters", "Parameters", "Size"]
    linear = ["in_features=4, out_features=3, bias=True", "weight: (3, 4), bias: (3,)", "15", "60 B"]
    assert rows[0] == ["Sequential", "", "", "21", "84 B"]
    assert rows[1] == ["(0): Linear", *linear]
    assert rows[3][0] == "(2): Sequential"
    assert rows[4] == ["(0): Linear", *linear]
    assert rows[5][:2] == ["(1): Named", '<script>alert(1)</script> & "more"']
    # A shared parameter counts once. Batch normalisation has two buffers of 3 numbers and a count of 8 bytes.
    assert page.text.endswith("21 parameters (9 trainable), 84 B of parameters, 32 B of buffers, cpu, training")


def test_a_deep_module_shows_the_first_modules() -> None:
    model = nn.Sequential(*(nn.ReLU() for _ in range(250)))
    page = Page(model._repr_html_())
    assert len(page.rows) == 201
    assert "51 more modules" in page.text


def test_tables_of_devices_and_traces() -> None:
    page = Page(tenure.devices("sim")._repr_html_())
    assert page.rows[0][1] == "Device" and len(page.rows) == 2
    recorded = trace.load("tests/data/resnet50_step.pickle.xz")
    page = Page(recorded._repr_html_())
    assert page.rows[0][0] == "Trace 'resnet50_step'"
    assert ["Peak of requested bytes", "5.55 GiB"] in page.rows


@pytest.mark.own_process
def test_a_summary_of_memory_is_text_that_notebooks_show_in_lines() -> None:
    _native.simulate_devices(1, 0)
    summary = cuda.memory_summary()
    assert isinstance(summary, str)
    assert Page(summary._repr_html_()).text == str(summary)  # type: ignore[attr-defined]

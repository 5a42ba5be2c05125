"""PyTorch modules as models of `tenure serve`."""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from .serving import PROGRAM, needs_program, until
from .serving import serving as serving_at

torch = pytest.importorskip("torch")

pytestmark = needs_program

CONFIG = """
python = "model.py:load"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 3] }]
[batching]
max_rows = 8
"""

LINEAR = """
    import torch

    def load(folder):
        torch.manual_seed({seed})
        return torch.nn.Linear(4, 3)
"""

#: One row of inputs.
ROW = [0.5, -1.25, 3.0, 0.1]


def write(models: Path, name: str, code: str, config: str = CONFIG) -> Path:
    folder = models / name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config)
    (folder / "model.py").write_text(textwrap.dedent(code))
    return folder


@contextmanager
def serving(models: Path, *args: str) -> Iterator[str]:
    with serving_at(models, "--python", sys.executable, *args) as address:
        yield address


def call(address: str, path: str, body: Any = None) -> Any:
    """Returns the answer's JSON, or the status and the error."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{address}/{path}", data), timeout=300) as answer:
            text = answer.read()
            return json.loads(text) if text else {}
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def ask(address: str, name: str, rows: list[list[float]]) -> Any:
    """Returns the outputs' numbers, or the status and the error."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), len(rows[0])], "data": sum(rows, [])}
    answer = call(address, f"v2/models/{name}/infer", {"inputs": [tensor]})
    return answer if isinstance(answer, tuple) else answer["outputs"][0]["data"]


def expected(seed: int, rows: list[list[float]]) -> list[float]:
    torch.manual_seed(seed)
    with torch.inference_mode():
        values: list[float] = torch.nn.Linear(4, 3)(torch.tensor(rows)).flatten().tolist()
    return values


def exactly(values: list[float]) -> list[bytes]:
    """Returns numbers as 32-bit floats, since JSON has each in the shortest form that reads back the same."""
    return [struct.pack("<f", value) for value in values]


def reason(address: str, name: str) -> str:
    index = {model["name"]: model for model in call(address, "v2/repository/index", {})}
    assert index[name]["state"] == "UNAVAILABLE"
    text: str = index[name]["reason"]
    return text


def worker(models: Path) -> int:
    """Returns the id of the only Python process that a folder's server has started."""
    (pid,) = workers(models)
    return pid


def workers(models: Path) -> set[int]:
    """Returns the ids of the Python processes that a folder's server has started, one for each model."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and b"tenure.serving.worker" in (folder / "cmdline").read_bytes().split(b"\0"):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if str(models).encode() in Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0"):
                    found.add(int(folder.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def metric(address: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)]
    assert values, f"there is no {name}"
    return sum(values)


def test_a_module_answers_what_it_does_in_a_program_bit_for_bit(tmp_path: Path) -> None:
    write(tmp_path, "linear", LINEAR.format(seed=1))
    rows = [ROW, [1.0, 2.0, 3.0, 4.0]]
    with serving(tmp_path) as address:
        assert exactly(ask(address, "linear", rows)) == exactly(expected(1, rows))
        metadata = call(address, "v2/models/linear")
        assert metadata["platform"] == "tenure_pytorch"
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]


def test_two_modules_take_turns_in_the_memory_of_one(tmp_path: Path) -> None:
    size = 1 << 20
    code = """
        import torch

        class Model(torch.nn.Module):
            def __init__(self, factor):
                super().__init__()
                self.big = torch.nn.Parameter(torch.full(({size},), {factor}))

            def forward(self, x):
                return x[:, :3] * self.big[0]

        def load(folder):
            return Model({factor})
    """
    for name, factor in ("double", 2.0), ("triple", 3.0):
        write(tmp_path, name, code.format(size=size, factor=factor))
    budget = 4 * size * 3 // 2
    with serving(tmp_path, "--device-bytes", str(budget)) as address:
        for _ in range(3):
            assert ask(address, "double", [[1.0, 2.0, 3.0, 0.0]]) == [2.0, 4.0, 6.0]
            assert ask(address, "triple", [[1.0, 2.0, 3.0, 0.0]]) == [3.0, 6.0, 9.0]
            assert metric(address, "tenure_resident_bytes") == 4 * size, "one of them, not both"
        # A switch is counted after the model that it loaded may have answered.
        until("six switches", lambda: metric(address, "tenure_switches_total") == 6)


def test_a_module_and_a_network_of_ours_share_one_budget(models: Path) -> None:
    code = """
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.big = torch.nn.Parameter(torch.ones(1 << 20))

            def forward(self, x):
                return x[:, :3] * self.big[0]

        def load(folder):
            return Model()
    """
    write(models, "big", code)
    # Either model fits, but not both.
    budget = (4 << 20) + 4096
    image = {"name": "image", "datatype": "FP32", "shape": [1, 1, 28, 28], "data": [0.5] * 784}
    with serving(models, "--device-bytes", str(budget)) as address:
        answers = []
        for _ in range(2):
            assert ask(address, "big", [ROW]) == [0.5, -1.25, 3.0]
            assert metric(address, "tenure_resident_bytes") == 4 << 20
            answers.append(call(address, "v2/models/digits/infer", {"inputs": [image]})["outputs"])
            assert 0 < metric(address, "tenure_resident_bytes") < 4 << 20
        assert answers[0] == answers[1]


def test_a_killed_process_is_replaced_and_its_models_are_loaded_again(tmp_path: Path) -> None:
    write(tmp_path, "linear", LINEAR.format(seed=3))
    with serving(tmp_path) as address:
        assert exactly(ask(address, "linear", [ROW])) == exactly(expected(3, [ROW]))
        first = worker(tmp_path)
        os.kill(first, signal.SIGKILL)
        assert exactly(ask(address, "linear", [ROW])) == exactly(expected(3, [ROW]))
        assert worker(tmp_path) != first


def test_a_module_that_ends_its_process_fails_its_batch_and_no_other(tmp_path: Path) -> None:
    write(tmp_path, "linear", LINEAR.format(seed=4))
    code = """
        import os, signal, torch

        class Deadly(torch.nn.Module):
            def forward(self, x):
                os.kill(os.getpid(), signal.SIGKILL)

        def load(folder):
            return Deadly()
    """
    write(tmp_path, "deadly", code)
    with serving(tmp_path) as address:
        status, error = ask(address, "deadly", [ROW])
        assert status == 503 and "the worker that computed it ended with signal: 9" in error
        assert exactly(ask(address, "linear", [ROW])) == exactly(expected(4, [ROW]))


def test_an_exception_is_the_requests_error_and_the_process_goes_on(tmp_path: Path) -> None:
    code = """
        import torch

        class Moody(torch.nn.Module):
            def forward(self, x):
                if x[0, 0] < 0:
                    raise ValueError("no negative\\nnumbers")
                return {answer}

        def load(folder):
            return Moody()
    """
    write(tmp_path, "moody", code.format(answer="x[:, :3]"))
    write(tmp_path, "none", code.format(answer="None"))
    write(tmp_path, "pair", code.format(answer="(x, x)"))
    write(tmp_path, "names", code.format(answer="{'z': x}"))
    write(tmp_path, "wide", code.format(answer="x"))
    write(tmp_path, "complex", code.format(answer="x[:, :3] + 1j"))
    with serving(tmp_path) as address:
        assert ask(address, "moody", [ROW])[0] == 0.5
        first = workers(tmp_path)
        assert ask(address, "moody", [[-1.0, 0.0, 0.0, 0.0]]) == (500, "ValueError: no negative numbers")
        assert "the module answers NoneType: answer tensors" in ask(address, "none", [ROW])[1]
        assert "the module answers 2 tensors, and config.toml has 1 outputs" in ask(address, "pair", [ROW])[1]
        assert "the module answers ['z'], and not ['y'], which config.toml has" in ask(address, "names", [ROW])[1]
        assert "an output is of torch.complex64: answer one of bool, uint8" in ask(address, "complex", [ROW])[1]
        assert "correct one of them" in ask(address, "wide", [ROW])[1]
        assert ask(address, "moody", [ROW])[0] == 0.5
        assert workers(tmp_path) == first


def test_requests_that_run_together_get_their_own_rows(tmp_path: Path) -> None:
    code = """
        import torch

        class Count(torch.nn.Module):
            def forward(self, x):
                return torch.cat([x[:, :2], torch.full((len(x), 1), float(len(x)))], 1)

        def load(folder):
            return Count()
    """
    # Nothing runs before there are four rows, or the delay is over.
    write(tmp_path, "count", code, CONFIG.replace("max_rows = 8", "max_rows = 4\nmax_delay_ms = 60000"))
    with serving(tmp_path) as address, ThreadPoolExecutor(2) as threads:
        of = [[[1.0, 2.0, 0.0, 0.0], [3.0, 4.0, 0.0, 0.0]], [[5.0, 6.0, 0.0, 0.0], [7.0, 8.0, 0.0, 0.0]]]
        answers = list(threads.map(lambda rows: ask(address, "count", rows), of))
        assert answers == [[1.0, 2.0, 4.0, 3.0, 4.0, 4.0], [5.0, 6.0, 4.0, 7.0, 8.0, 4.0]]


def test_a_module_that_computes_for_long_yields_until_its_batches_are_short_again(tmp_path: Path) -> None:
    code = """
        import os
        import torch

        class Heavy(torch.nn.Module):
            def forward(self, x):
                normal = os.getpriority(os.PRIO_PROCESS, 0)
                while x.sum() < 0 and os.getpriority(os.PRIO_PROCESS, 0) == normal:
                    pass
                return torch.full((len(x), 3), os.getpriority(os.PRIO_PROCESS, 0), dtype=torch.float32)

        def load(folder):
            return Heavy()
    """
    write(tmp_path, "heavy", code)
    with serving(tmp_path) as address:
        pid = worker(tmp_path)
        normal = ask(address, "heavy", [ROW])[0]
        # It is answered only because the niceness is raised while it computes.
        nice = ask(address, "heavy", [[-1.0] * 4])[0]
        assert nice == min(normal + 10, 19)
        short_batches = [ask(address, "heavy", [ROW])[0] for _ in range(40)]
        assert short_batches[0] == nice and short_batches[-1] == normal
        assert short_batches == sorted(short_batches, reverse=True)
        assert ask(address, "heavy", [[-1.0] * 4])[0] == nice
        assert worker(tmp_path) == pid


def test_a_module_that_goes_on_when_no_request_waits_is_ended(tmp_path: Path) -> None:
    write(tmp_path, "linear", LINEAR.format(seed=9))
    code = """
        import pathlib, signal, torch

        class Endless(torch.nn.Module):
            def __init__(self, folder):
                super().__init__()
                self.folder = folder

            def forward(self, x):
                pathlib.Path(self.folder, "begun").write_text("begun")
                while True:
                    signal.pause()

        def load(folder):
            return Endless(folder)
    """
    begun = write(tmp_path, "endless", code) / "begun"
    os.mkfifo(begun)
    with serving(tmp_path) as address:
        first = workers(tmp_path)
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW}
        client = HTTPConnection(address)
        client.request("POST", "/v2/models/endless/infer", json.dumps({"inputs": [tensor]}))
        # Waits until the module has written it.
        assert begun.read_text() == "begun"
        client.close()
        # The other module's process goes on.
        assert exactly(ask(address, "linear", [ROW])) == exactly(expected(9, [ROW]))
        until("the process has ended", lambda: len(workers(tmp_path) & first) == 1)


def test_a_model_that_does_not_load_is_broken_with_its_message_until_it_is_loaded_again(tmp_path: Path) -> None:
    write(tmp_path, "linear", LINEAR.format(seed=5))
    write(tmp_path, "broken", "def load(folder):\n    raise RuntimeError(open(folder + '/reason').read())\n")
    write(tmp_path, "missing", "def other(folder): ...")
    write(tmp_path, "number", "def load(folder):\n    return 7\n")
    write(tmp_path, "exits", "import sys\ndef load(folder):\n    sys.exit('enough')\n")
    write(tmp_path, "syntax", "def load(")
    write(tmp_path, "module", "", CONFIG.replace("model.py:load", "there_is.no_such:load"))
    (tmp_path / "broken/reason").write_text("no such\nfile")
    with serving(tmp_path) as address:
        assert reason(address, "broken") == "RuntimeError: no such file"
        assert reason(address, "missing") == "AttributeError: model.py has no function 'load'"
        assert reason(address, "number") == "TypeError: load of model.py returns int: return a torch.nn.Module"
        assert reason(address, "exits") == "SystemExit: enough"
        assert reason(address, "syntax").startswith("SyntaxError: ")
        assert reason(address, "module") == "ModuleNotFoundError: No module named 'there_is'"
        assert ask(address, "broken", [ROW])[1].endswith("RuntimeError: no such file")
        assert exactly(ask(address, "linear", [ROW])) == exactly(expected(5, [ROW]))
        (tmp_path / "broken/reason").write_text("another")
        assert "another" in call(address, "v2/repository/models/broken/load", {})[1]
        (tmp_path / "broken/model.py").write_text(textwrap.dedent(LINEAR.format(seed=6)))
        assert call(address, "v2/repository/models/broken/load", {}) == {}
        assert exactly(ask(address, "broken", [ROW])) == exactly(expected(6, [ROW]))


def test_a_load_that_fails_later_is_the_requests_error_and_is_tried_again(tmp_path: Path) -> None:
    code = """
        import pathlib, torch

        def load(folder):
            if pathlib.Path(folder, "stop").exists():
                raise RuntimeError("stopped")
            return torch.nn.Linear(4, 3 + pathlib.Path(folder, "more").exists())
    """
    folder = write(tmp_path, "m", code)
    with serving(tmp_path) as address:
        (folder / "stop").touch()
        assert ask(address, "m", [ROW]) == (500, "RuntimeError: stopped")
        (folder / "stop").unlink()
        (folder / "more").touch()
        more = "it has 80 bytes of weights now, and had 60: load the model again"
        assert ask(address, "m", [ROW]) == (500, more)
        (folder / "more").unlink()
        assert len(ask(address, "m", [ROW])) == 3


def test_a_module_prints_to_standard_error(tmp_path: Path) -> None:
    code = """
        import os, torch

        print("loading", flush=True)

        class Loud(torch.nn.Module):
            def forward(self, x):
                os.write(1, b"computing\\n")
                assert not os.read(0, 1), "standard input is empty"
                return x[:, :3]

        def load(folder):
            return Loud()
    """
    write(tmp_path, "loud", code)
    command = [str(PROGRAM), "serve", str(tmp_path), "--listen", "127.0.0.1:0", "--python", sys.executable, "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        assert said["models"] == ["loud"]
        assert len(ask(said["url"].removeprefix("http://"), "loud", [ROW])) == 3
        pid = worker(tmp_path)
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=300)
        assert server.returncode == 0 and out == ""
        assert "loading\n" in err and "computing\n" in err
        assert not Path(f"/proc/{pid}").exists(), "it ends with its server"
    finally:
        server.kill()
        server.wait()


def test_a_server_that_is_killed_takes_its_process_with_it(tmp_path: Path) -> None:
    write(tmp_path, "linear", LINEAR.format(seed=7))
    command = [str(PROGRAM), "serve", str(tmp_path), "--listen", "127.0.0.1:0", "--python", sys.executable, "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stdout.readline()
    ended = os.pidfd_open(worker(tmp_path))
    server.kill()
    server.wait()
    # The descriptor is readable once the worker has ended; otherwise the test's own limit ends the test.
    select.select([ended], [], [])
    os.close(ended)


def test_tensors_of_all_types_come_and_go_as_they_are(tmp_path: Path) -> None:
    types = {
        "BOOL": (torch.bool, b"\x00\x01"),
        "UINT8": (torch.uint8, bytes([0, 255])),
        "INT8": (torch.int8, struct.pack("<2b", -128, 127)),
        "INT16": (torch.int16, struct.pack("<2h", -(1 << 15), 1)),
        "INT32": (torch.int32, struct.pack("<2i", -(1 << 31), 1)),
        "INT64": (torch.int64, struct.pack("<2q", -(1 << 63), 1)),
        "FP16": (torch.float16, struct.pack("<2e", 0.5, -2.0)),
        "BF16": (torch.bfloat16, b"\x80\x3f\x00\xc0"),
        "FP32": (torch.float32, struct.pack("<2f", 0.1, -2.0)),
        "FP64": (torch.float64, struct.pack("<2d", 0.1, -2.0)),
    }
    tensors = ", ".join(f'{{ name = "{name}", datatype = "{name}", shape = [-1] }}' for name in types)
    config = f'python = "model.py:load"\ninputs = [{tensors}]\noutputs = [{tensors}]\nbatching.max_rows = 2\n'
    code = f"""
        import torch

        class Echo(torch.nn.Module):
            def forward(self, *inputs):
                assert [each.dtype for each in inputs] == [{", ".join(str(dtype) for dtype, _ in types.values())}]
                return dict(zip({list(types)}, inputs))

        def load(folder):
            return Echo()
    """
    write(tmp_path, "echo", code, config)
    inputs = [
        {"name": name, "datatype": name, "shape": [2], "parameters": {"binary_data_size": len(data)}}
        for name, (_, data) in types.items()
    ]
    payload = b"".join(data for _, data in types.values())
    asked = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    with serving(tmp_path) as address:
        header = {"Inference-Header-Content-Length": str(len(asked))}
        request = urllib.request.Request(f"http://{address}/v2/models/echo/infer", asked + payload, header)
        with urllib.request.urlopen(request, timeout=300) as answer:
            length = int(answer.headers["Inference-Header-Content-Length"])
            body = answer.read()
        assert [each["datatype"] for each in json.loads(body[:length])["outputs"]] == list(types)
        assert body[length:] == payload


def test_a_python_without_pytorch_is_named(tmp_path: Path) -> None:
    write(tmp_path, "linear", LINEAR.format(seed=8))
    with serving_at(tmp_path, "--python", "/bin/false") as address:
        said = reason(address, "linear")
        assert said.endswith("exit status: 1: can /bin/false import tenure and torch? name another with --python")
    with serving_at(tmp_path, "--python", str(tmp_path / "none")) as address:
        assert "none: No such file or directory (os error 2): name a Python with --python" in reason(address, "linear")

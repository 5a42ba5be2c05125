"""Planning from Python: problems, planners, mappings, and a client of agents."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import tenure
import tenure.plan

from .serve.serving import PROGRAM, needs_program

HEADER = struct.Struct("<4sHHI")
SPEED = {"read_bandwidth": 10**9, "write_bandwidth": 10**9}


@pytest.fixture
def problem() -> tenure.plan.Problem:
    """Returns two weights, of which the first tier holds one: the plan should put the one read more often there."""
    return tenure.plan.Problem.from_dict(
        {
            "format": "tenure-problem",
            "version": 1,
            "name": "two weights",
            "tiers": [{"name": "DRAM", "capacity": 100, **SPEED}, {"name": "PM", **SPEED, "read_bandwidth": 10**8}],
            "tensors": [{"key": key, "bytes": 60, "tag": "weight"} for key in ("often", "seldom")],
            "kernels": [
                {
                    "name": "both",
                    "time_ns": 100,
                    "reads": [{"tensor": 0, "bytes": 60}, {"tensor": 1, "bytes": 6}],
                    "writes": [],
                }
            ],
        }
    )


def test_a_problem_is_read_as_it_was_written(problem: tenure.plan.Problem, tmp_path: Path) -> None:
    problem.save(tmp_path / "problem.json")
    again = tenure.plan.Problem.load(tmp_path / "problem.json")
    assert again.to_dict() == problem.to_dict()
    assert (again.name, again.peak_bytes) == ("two weights", 120)
    assert [tensor["key"] for tensor in again.tensors] == ["often", "seldom"]
    assert [kernel["time_ns"] for kernel in again.kernels] == [100]
    assert [tier["name"] for tier in again.with_tiers(problem.tiers[:1]).tiers] == ["DRAM"]


def test_a_problem_is_parsed_once_and_copies_of_it_are_its_users(problem: tenure.plan.Problem) -> None:
    assert problem.tensors is problem.tensors and problem.kernels is problem.kernels and problem.tiers is problem.tiers
    problem.to_dict()["tiers"].clear()
    assert [tier["name"] for tier in problem.tiers] == ["DRAM", "PM"]


def test_an_invalid_problem_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match="missing.json"):
        tenure.plan.Problem.load(tmp_path / "missing.json")
    with pytest.raises(tenure.Error, match="name"):
        tenure.plan.Problem.from_dict({"format": "tenure-problem", "version": 1})


@pytest.mark.parametrize("planner", tenure.plan.planners())
def test_all_planners_plan_what_the_simulator_plays(problem: tenure.plan.Problem, planner: str, tmp_path: Path) -> None:
    mapping = tenure.plan.plan(problem, planner, evaluations=20)
    assert mapping.planned is not None
    outcome = tenure.plan.simulate(problem, mapping)
    assert (outcome.score, outcome.makespan_us) == (mapping.planned.score, mapping.planned.makespan_us)
    assert mapping.planned.planner == planner
    assert outcome.least_us <= outcome.makespan_us
    mapping.save(tmp_path / "mapping.json")
    again = tenure.plan.Mapping.load(tmp_path / "mapping.json")
    assert (again.places, again.tiers, again.program) == (mapping.places, ["DRAM", "PM"], "two weights")


def test_the_best_mapping_is_found(problem: tenure.plan.Problem) -> None:
    mapping = tenure.plan.plan(problem)
    assert mapping.places == {"often": "DRAM", "seldom": "PM"}
    assert tenure.plan.simulate(problem, mapping).peak_bytes == {"DRAM": 60, "PM": 60}
    everything = tenure.plan.plan(problem, "density", fast_bytes=120)
    assert everything.places == {"often": "DRAM", "seldom": "DRAM"}
    with pytest.raises(tenure.Error, match="room"):
        tenure.plan.simulate(problem, everything)


def test_wrong_arguments_are_named(problem: tenure.plan.Problem) -> None:
    with pytest.raises(ValueError, match="oracle.*expected one of.*density"):
        tenure.plan.plan(problem, "oracle")
    with pytest.raises(ValueError, match="seconds=-1"):
        tenure.plan.plan(problem, seconds=-1)
    with pytest.raises(ValueError, match="evaluations=-1"):
        tenure.plan.plan(problem, evaluations=-1)
    with pytest.raises(tenure.Error, match="fast_bytes"):
        tenure.plan.plan(problem.with_tiers([]))


def test_progress_is_told_and_ends_a_search(problem: tenure.plan.Problem) -> None:
    told: list[tuple[int, float | None]] = []
    tenure.plan.plan(problem, "evolutionary", evaluations=5, progress=lambda *at: told.append(at))
    assert [evaluations for evaluations, _ in told] == [1, 2, 3, 4, 5][: len(told)] and told

    def end(evaluations: int, best: float | None) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        tenure.plan.plan(problem, "evolutionary", progress=end)


def test_ctrl_c_ends_a_search(problem: tenure.plan.Problem) -> None:
    with pytest.raises(KeyboardInterrupt):
        tenure.plan.plan(problem, "evolutionary", progress=lambda *at: os.kill(os.getpid(), signal.SIGINT))


def serve(listener: socket.socket, replies: list[tuple[int, dict[str, Any]]], asked: list[Any]) -> None:
    """Serves as an agent that sends these replies, one after the other, on one connection."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as stream:
        for kind, reply in replies:
            _, _, number, length = HEADER.unpack(stream.read(HEADER.size))
            asked.append((number, json.loads(stream.read(length))))
            body = json.dumps(reply).encode()
            connection.sendall(HEADER.pack(b"TNAG", 1, kind, len(body)) + body)


def test_an_agent_is_asked_and_told_measured_times(problem: tenure.plan.Problem, tmp_path: Path) -> None:
    tenure.plan.plan(problem).save(tmp_path / "mapping.json")
    placed = {"planner": "marl", "score": 0.5, "makespan_us": 1.0, "evaluations": 7, "seconds": 0.25}
    learned = tenure.plan.Learned(learns=True, reports=1, message="learned")
    refused = {"code": "report", "message": "1 time is too few"}
    replies = [(2, placed | {"mapping": str(tmp_path / "mapping.json")}), (5, asdict(learned)), (3, refused)]
    asked: list[Any] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener, replies, asked))
        thread.start()
        agent = tenure.plan.Agent(tmp_path / "agent.sock")
        mapping = agent.plan(problem, "marl", seconds=1, seed=3)
        assert mapping.places == {"often": "DRAM", "seldom": "PM"}
        assert mapping.planned is not None
        assert (mapping.planned.planner, mapping.planned.evaluations) == ("marl", 7)
        assert mapping.planned.score == 60 / 66, "what the agent said is not believed"
        assert agent.report(mapping, 200, [200]) == learned
        with pytest.raises(tenure.Error, match="too few"):
            agent.report(mapping, 200, [])
        thread.join()
    assert [number for number, _ in asked] == [1, 4, 4]
    assert asked[0][1]["options"] == {"planner": "marl", "seconds": 1.0, "seed": 3}
    assert asked[1][1] == {"mapping": str(tmp_path / "mapping.json"), "step_ns": 200, "kernels_ns": [200]}
    with pytest.raises(ValueError, match=r"Agent\.plan"):
        agent.report(tenure.plan.plan(problem), 200, [200])


@contextmanager
def learning(folder: Path) -> Iterator[tenure.plan.Agent]:
    """Runs the agent of ``tenure agent serve --learn``, and checks that it exits with success when asked to."""
    command = [str(PROGRAM), "agent", "serve", "--socket", "agent.sock", "--results", ".", "--learn", "learned.json"]
    program = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("serving at")
        yield tenure.plan.Agent(folder / "agent.sock")
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.wait()


@needs_program
def test_the_programs_agent_learns_and_remembers_what_it_learned(problem: tenure.plan.Problem, tmp_path: Path) -> None:
    with learning(tmp_path) as agent:
        mapping = agent.plan(problem, evaluations=20)
        assert mapping.places == {"often": "DRAM", "seldom": "PM"}
        with pytest.raises(tenure.Error, match="a kernel takes 9000 ns, longer than its step of 1 ns"):
            agent.report(mapping, 1, [9000])
        learned = agent.report(mapping, 9000, [9000])
        assert (learned.learns, learned.reports) == (True, 1)
    with learning(tmp_path) as agent:
        assert agent.plan(problem, evaluations=20).places.keys() == mapping.places.keys()
        assert agent.report(mapping, 9000, [9000]).reports == 2, "reports and mappings are remembered"


def test_no_agent_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match="tenure agent serve"):
        tenure.plan.Agent(tmp_path / "agent.sock")


def test_the_example_records_plans_and_installs() -> None:
    pytest.importorskip("torch")
    example = Path(__file__).parents[2] / "examples" / "placement.py"
    result = subprocess.run([sys.executable, example], capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
    assert "Planned(planner='scheduled'" in result.stdout and "DRAM" in result.stdout

"""Placement: in which tier of memory each tensor of a program lives.

Examples
--------
>>> import tenure.plan
>>> weights = [{"key": key, "bytes": 60, "tag": "weight"} for key in ("often", "seldom")]
>>> reads = [{"tensor": 0, "bytes": 60}, {"tensor": 1, "bytes": 6}]
>>> speed = {"read_bandwidth": 10**9, "write_bandwidth": 10**9}
>>> problem = tenure.plan.Problem.from_dict({
...     "format": "tenure-problem", "version": 1, "name": "two weights",
...     "tiers": [{"name": "DRAM", "capacity": 100, **speed}, {"name": "PM", **speed, "read_bandwidth": 10**8}],
...     "tensors": weights, "kernels": [{"name": "both", "time_ns": 100, "reads": reads, "writes": []}],
... })
>>> mapping = tenure.plan.plan(problem)
>>> mapping.places
{'often': 'DRAM', 'seldom': 'PM'}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any, TypeAlias

from tenure import _native
from tenure._arguments import whole_number

__all__ = ["Agent", "Learned", "Mapping", "Outcome", "Planned", "Problem", "plan", "planners", "simulate"]

FilePath: TypeAlias = str | PathLike[str]
Progress: TypeAlias = Callable[[int, float | None], object]

_MOST_64 = 2**64 - 1


class Problem:
    """One iteration of a program, and tiers of memory for its tensors. Made by `load` or `from_dict`.

    A problem has been validated, and does not change: its lists are the same at each call, to be read only. `to_dict`
    returns a copy to change. ``tenure.torch.record(...).write`` writes a problem without tiers.
    """

    def __init__(self, native: _native.Problem) -> None:
        self._native = native

    @classmethod
    def load(cls, path: FilePath) -> Problem:
        """Reads a file (docs/problem-format.md).

        Raises
        ------
        tenure.Error
            The file cannot be read or makes no sense; the text names it and the part that is wrong.
        """
        return cls(_native.Problem.load(path))

    @classmethod
    def from_dict(cls, problem: dict[str, Any]) -> Problem:
        """A problem of what its file would say. Raises `tenure.Error` if that makes no sense."""
        return cls(_native.Problem.from_json(json.dumps(problem)))

    def to_dict(self) -> dict[str, Any]:
        """A copy of the content of the problem's file."""
        problem: dict[str, Any] = json.loads(self._native.to_json())
        return problem

    def save(self, path: FilePath) -> None:
        """Writes a file, which appears whole or not at all."""
        self._native.save(path)

    def with_tiers(self, tiers: list[dict[str, Any]]) -> Problem:
        """The same program on other tiers, the fastest first, as in a problem's file; without links between them."""
        return Problem.from_dict(self.to_dict() | {"tiers": tiers, "links": []})

    @cached_property
    def _content(self) -> dict[str, Any]:
        return self.to_dict()

    @property
    def name(self) -> str:
        """The name of the program."""
        return str(self._content["name"])

    @property
    def tensors(self) -> list[dict[str, Any]]:
        """The tensors: key, bytes, tag."""
        return self._list("tensors")

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """The kernels in their order: name, time_ns, reads, writes."""
        return self._list("kernels")

    @property
    def tiers(self) -> list[dict[str, Any]]:
        """The tiers of memory, the fastest first."""
        return self._list("tiers")

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are live at once."""
        return self._native.peak_bytes

    def _list(self, part: str) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = self._content[part]
        return content

    def __repr__(self) -> str:
        return f"<tenure.plan.Problem {self.name!r}: {self.peak_bytes} bytes at the peak>"


@dataclass(frozen=True)
class Planned:
    """A planner's figures of its mapping."""

    planner: str
    score: float
    """The share of accessed bytes that the first tier serves, 0 to 1."""
    bound: float | None
    """The score that no placement surpasses, if the planner knows one."""
    makespan_us: float
    """How long an iteration takes in the simulator, in µs."""
    least_us: float
    """The time that no plan undercuts, in µs."""
    evaluations: int
    """Plans tried."""
    seconds: float
    """How long that took."""


class Mapping:
    """In which tier each tensor lives. Made by `plan`, `Agent.plan` or `load`.

    Attributes
    ----------
    planned
        The planner's own figures of it; None if it was loaded.
    path
        The file of an agent's answer; None of others.
    """

    def __init__(
        self, native: _native.Mapping, planned: Planned | None = None, path: PathLike[str] | None = None
    ) -> None:
        self._native = native
        self.planned = planned
        self.path = path

    @classmethod
    def load(cls, path: FilePath) -> Mapping:
        """Reads a file (docs/mapping-format.md). Raises `tenure.Error` if it is none."""
        return cls(_native.Mapping.load(path))

    def save(self, path: FilePath) -> None:
        """Writes a file, which appears whole or not at all, for `tenure.torch.install` with ``device="cpu"``."""
        self._native.save(path)

    @property
    def program(self) -> str:
        """The name of the program."""
        return self._native.program

    @property
    def tiers(self) -> list[str]:
        """The names of the tiers, the fastest first."""
        return self._native.tiers

    @property
    def places(self) -> dict[str, str]:
        """Of each key the name of the tier where it lives."""
        tiers = self.tiers
        return {key: tiers[tier] for key, tier in self._native.places}


@dataclass(frozen=True)
class Outcome:
    """The figures of a mapping in the simulator."""

    score: float
    """The share of accessed bytes that the first tier serves, 0 to 1."""
    makespan_us: float
    """How long an iteration takes, in µs."""
    least_us: float
    """The time that no plan undercuts, in µs."""
    peak_bytes: dict[str, int]
    """The most bytes in each tier at once."""
    accessed_bytes: dict[str, int]
    """Bytes that kernels read and wrote in each tier."""


@dataclass(frozen=True)
class Learned:
    """What an agent does with measured times."""

    learns: bool
    """Whether its next answers for the program follow from them."""
    reports: int
    """Reports on the program that it has learned from."""
    message: str
    """The same in words."""


class Agent:
    """A connection to an agent, which plans in another process (``tenure agent serve``).

    Parameters
    ----------
    address
        The path of its socket, or ``ADDRESS:PORT`` of this host.

    Raises
    ------
    tenure.Error
        No agent answers there; the text says how to start one.

    Examples
    --------
    >>> agent = tenure.plan.Agent("/run/user/1000/agent.sock")  # doctest: +SKIP
    >>> mapping = agent.plan(problem)  # doctest: +SKIP
    >>> agent.report(mapping, step_ns=412000, kernels_ns=[400000]).learns  # doctest: +SKIP
    True
    """

    def __init__(self, address: FilePath) -> None:
        self._native = _native.AgentClient(str(address))

    def plan(
        self,
        problem: Problem,
        planner: str | None = None,
        *,
        seconds: float = 10.0,
        seed: int = 0,
        evaluations: int | None = None,
        fast_bytes: int | None = None,
    ) -> Mapping:
        """Asks for a mapping, and checks it. The parameters are those of `tenure.plan.plan`.

        Raises
        ------
        tenure.Error
            The agent refused, does not answer, or its mapping is not one of the problem.
        """
        options = _options(planner, seconds, seed, evaluations, fast_bytes)
        native, path, facts = self._native.plan(problem._native, options)
        return Mapping(native, Planned(**json.loads(facts)), path)

    def report(self, mapping: Mapping, step_ns: int, kernels_ns: Iterable[int]) -> Learned:
        """Reports what a step under a mapping of this agent took, so that its next mapping is better.

        Parameters
        ----------
        mapping
            An answer of this agent.
        step_ns
            Nanoseconds of one step: no less than its longest kernel's.
        kernels_ns
            Nanoseconds of each kernel of the problem, in their order.

        Raises
        ------
        tenure.Error
            The agent remembers no such mapping, the problem has another number of kernels, or the times cannot be true:
            a step shorter than its longest kernel or longer than an hour, or kernels that all take no time.
        ValueError
            The mapping is not an agent's.
        """
        if mapping.path is None:
            raise ValueError("mapping: expected an answer of Agent.plan, which has a path")
        times = [whole_number("kernels_ns", ns, 0, _MOST_64) for ns in kernels_ns]
        step_ns = whole_number("step_ns", step_ns, 1, _MOST_64)
        return Learned(**json.loads(self._native.report(mapping.path, step_ns, times)))


def planners() -> dict[str, str]:
    """All planners by name, each with a line about it.

    Examples
    --------
    >>> import tenure.plan
    >>> tenure.plan.planners()["density"]
    'the most accessed for each byte and kernel of their life first'
    """
    return dict(_native.planners())


def plan(
    problem: Problem,
    planner: str = "scheduled",
    *,
    seconds: float = 10.0,
    seed: int = 0,
    evaluations: int | None = None,
    fast_bytes: int | None = None,
    progress: Progress | None = None,
) -> Mapping:
    """Plans in which tier each tensor lives, so that the first tier serves most accesses.

    Ctrl-C ends a search. Other Python threads run meanwhile.

    Parameters
    ----------
    problem
        The program whose tensors are placed, with tiers. ``fast_bytes`` sets the capacity of the first.
    planner
        One of `planners`.
    seconds
        How long to search, 0 to 3600.
    seed
        Where random numbers begin. The same seed and number of evaluations give the same mapping.
    evaluations
        The most plans to try.
    fast_bytes
        The capacity of the first tier, if not the problem's.
    progress
        Called after each plan with the number of plans tried and the best score so far. Its exceptions end the search.

    Raises
    ------
    tenure.Error
        No plan was found.
    ValueError
        There is no such planner, or ``seconds`` is out of range.
    """
    options = _options(planner, seconds, seed, evaluations, fast_bytes)
    native, facts = _native.plan(problem._native, options, progress)
    return Mapping(native, Planned(**json.loads(facts)))


def simulate(problem: Problem, mapping: Mapping) -> Outcome:
    """Plays a mapping in the simulator. Raises `tenure.Error` if it has other tiers or does not fit."""
    facts = json.loads(_native.simulate_mapping(problem._native, mapping._native))
    for name in ("peak_bytes", "accessed_bytes"):
        facts[name] = dict(facts[name])
    return Outcome(**facts)


def _options(planner: str | None, seconds: float, seed: int, evaluations: int | None, fast_bytes: int | None) -> str:
    numbers = {"seed": seed, "evaluations": evaluations, "fast_bytes": fast_bytes}
    options: dict[str, Any] = {
        name: whole_number(name, number, 0, _MOST_64) for name, number in numbers.items() if number is not None
    }
    if not 0 <= seconds <= 3600:
        raise ValueError(f"seconds={seconds}: expected 0 to 3600")
    return json.dumps(options | {"seconds": seconds} | ({} if planner is None else {"planner": planner}))

"""Planning: the memory tier in which each tensor of a program lives.

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
    """One iteration of a program, and tiers of memory for its tensors. `load` or `from_dict` makes it.

    A problem has been validated and is immutable: its lists are the same at each access and must not be changed.
    `to_dict` returns a copy that may be changed. ``tenure.torch.record(...).write`` writes a problem without tiers.
    """

    def __init__(self, native: _native.Problem) -> None:
        self._native = native

    @classmethod
    def load(cls, path: FilePath) -> Problem:
        """Reads a problem from a file (docs/reference/problem-format.md).

        Raises
        ------
        tenure.Error
            The file cannot be read or is not valid; the message names it and the part that is wrong.
        """
        return cls(_native.Problem.load(path))

    @classmethod
    def from_dict(cls, problem: dict[str, Any]) -> Problem:
        """Makes a problem from the content of its file. Raises `tenure.Error` if it is not valid."""
        return cls(_native.Problem.from_json(json.dumps(problem)))

    def to_dict(self) -> dict[str, Any]:
        """Returns a copy of the content of the problem's file."""
        problem: dict[str, Any] = json.loads(self._native.to_json())
        return problem

    def save(self, path: FilePath) -> None:
        """Writes the problem to a file. The file appears whole or not at all."""
        self._native.save(path)

    def with_tiers(self, tiers: list[dict[str, Any]]) -> Problem:
        """Returns the same program with other tiers, the fastest first, as in a problem's file; without links."""
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
        """The peak of live bytes."""
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
    """The score that no placement exceeds, if the planner knows one."""
    makespan_us: float
    """The simulated time of an iteration, in µs."""
    least_us: float
    """A lower bound of the time under any plan, in µs."""
    evaluations: int
    """The number of plans tried."""
    seconds: float
    """The planning time in seconds."""


class Mapping:
    """The tier in which each tensor lives. `plan`, `Agent.plan` or `load` makes it.

    Attributes
    ----------
    planned
        The planner's own figures; None for a mapping that was loaded.
    path
        The file of an agent's answer; None for other mappings.
    """

    def __init__(
        self, native: _native.Mapping, planned: Planned | None = None, path: PathLike[str] | None = None
    ) -> None:
        self._native = native
        self.planned = planned
        self.path = path

    @classmethod
    def load(cls, path: FilePath) -> Mapping:
        """Reads a mapping from a file (docs/reference/mapping-format.md); raises `tenure.Error` if it is not valid."""
        return cls(_native.Mapping.load(path))

    def save(self, path: FilePath) -> None:
        """Writes the mapping to a file, whole or not at all, for `tenure.torch.install` with ``device="cpu"``."""
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
        """The name of the tier of each key."""
        tiers = self.tiers
        return {key: tiers[tier] for key, tier in self._native.places}


@dataclass(frozen=True)
class Outcome:
    """The figures of a mapping in the simulator."""

    score: float
    """The share of accessed bytes that the first tier serves, 0 to 1."""
    makespan_us: float
    """The simulated time of an iteration, in µs."""
    least_us: float
    """A lower bound of the time under any plan, in µs."""
    peak_bytes: dict[str, int]
    """The peak of bytes in each tier."""
    accessed_bytes: dict[str, int]
    """The bytes that kernels read and wrote in each tier."""


@dataclass(frozen=True)
class Learned:
    """An agent's use of measured times."""

    learns: bool
    """Whether its next answers for the program use them."""
    reports: int
    """The number of reports on the program that it has learned from."""
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
        No agent answers there; the message says how to start one.

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
        """Asks the agent for a mapping and checks it. The parameters are those of `tenure.plan.plan`.

        Raises
        ------
        tenure.Error
            The agent refused, does not answer, or its mapping does not fit the problem.
        """
        options = _options(planner, seconds, seed, evaluations, fast_bytes)
        native, path, facts = self._native.plan(problem._native, options)
        return Mapping(native, Planned(**json.loads(facts)), path)

    def report(self, mapping: Mapping, step_ns: int, kernels_ns: Iterable[int]) -> Learned:
        """Reports the measured times of a step under a mapping of this agent, so that its next mapping is better.

        Parameters
        ----------
        mapping
            An answer of this agent.
        step_ns
            The time of one step in nanoseconds: at least that of its longest kernel.
        kernels_ns
            The time of each kernel of the problem in nanoseconds, in their order.

        Raises
        ------
        tenure.Error
            The agent does not know the mapping, the problem has another number of kernels, or the times are impossible:
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
    """Returns all planners by name, each with a line that describes it.

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
    """Plans the tier of each tensor, so that the first tier serves most accesses.

    Ctrl-C ends a search. Other Python threads run meanwhile.

    Parameters
    ----------
    problem
        The program whose tensors are placed, with its tiers. ``fast_bytes`` sets the capacity of the first.
    planner
        One of `planners`.
    seconds
        The time to search in seconds, 0 to 3600.
    seed
        The seed of the random numbers. The same seed and number of evaluations give the same mapping.
    evaluations
        The most plans to try.
    fast_bytes
        The capacity of the first tier in bytes, if not the problem's.
    progress
        A function that is called after each plan with the number of plans tried and the best score so far. An exception
        from it ends the search.

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
    """Simulates a mapping. Raises `tenure.Error` if it has other tiers than the problem or does not fit."""
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

"""Runs tests of one of PyTorch's test files in this process, and writes the result of each as it happens.

The file runs unchanged, as `__main__`; only `run_tests`, which it calls at its end, is replaced. `pytorch-tests` starts
this program, reads its lines, and starts it again for the tests that a crash or a hang left over.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import re
import runpy
import sys
import textwrap
import time
import types
import unittest
from pathlib import Path
from typing import Any, TextIO

# The exit status that asks for a new process: this one lost its CUDA context.
LOST = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--allocator", required=True)
    parser.add_argument("--tests", type=Path, help="file of the tests to run, one a line; else they are listed")
    arguments = parser.parse_args()
    begin(arguments.allocator)
    from torch.testing._internal import common_utils

    names = arguments.tests.read_text().split() if arguments.tests else None

    def run_tests(*_: Any, **__: Any) -> None:
        with arguments.out.open("a") as out:
            found = cases(sys.modules["__main__"])
            if names is None:
                json.dump(sorted(found), out)
                return
            result = Lines(out)
            for name in names:
                # The tests that ran before this one may have left garbage, which holds memory.
                gc.collect()
                found[name](result)
                if result.lost_context():
                    sys.exit(LOST)

    common_utils.run_tests = run_tests
    # Child processes of tests find the files beside this one, as if the file had been started by its name.
    os.chdir(arguments.file.parent)
    sys.path.insert(0, str(arguments.file.parent))
    sys.argv = [str(arguments.file)]
    common_utils.parse_cmd_line_args()
    runpy.run_path(str(arguments.file), run_name="__main__")


def begin(allocator: str) -> None:
    """Imports torch, and checks that it uses the intended allocator."""
    import torch  # noqa: F401

    if allocator == "tenure":
        if importlib.util.find_spec("tenure") is None:
            sys.exit("the package `tenure` is not installed for this Python: `pip install .` in the project's folder")
        import tenure.torch

        state = tenure.torch.status()
        if state.mode not in ("prebuilt shim", "built shim"):
            sys.exit(f"PyTorch is not on Tenure's allocator: {' '.join(str(state).split())}")


def cases(module: types.ModuleType) -> dict[str, unittest.TestCase]:
    """Returns the tests of a module by `Class.name`, with those that it imports."""
    tests = {}
    for case in vars(module).values():
        if isinstance(case, type) and issubclass(case, unittest.TestCase):
            for name in unittest.defaultTestLoader.getTestCaseNames(case):
                tests[f"{case.__name__}.{name}"] = case(name)
    return tests


class Lines(unittest.TestResult):
    """Writes a line when a test begins and one when it ends."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out
        self.outcome = ("pass", "")
        self.began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcome, self.began = ("pass", ""), time.monotonic()
        self.write(test, "begin", "")

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.write(test, *self.outcome)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcome = ("skip", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.outcome = ("fail", reason_of(err))

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.outcome = ("fail", reason_of(err))

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.outcome = ("fail", "it passed, but is expected to fail")

    def lost_context(self) -> bool:
        """Returns whether the last test left a device on which every call fails."""
        if self.outcome[0] != "fail":
            return False
        import torch

        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def write(self, test: unittest.TestCase, outcome: str, reason: str) -> None:
        name = f"{type(test).__name__}.{test._testMethodName}"
        seconds = round(time.monotonic() - self.began, 3)
        line = {"test": name, "outcome": outcome, "reason": reason, "seconds": seconds}
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()


def reason_of(err: Any) -> str:
    """Returns the text of an error, and the line of the test that raised it."""
    kind, error, trace = err
    # The rest of the text tells how to run the test.
    text = " ".join(str(error).partition("To execute this test")[0].split())
    where = ""
    while trace is not None:
        frame = trace.tb_frame
        if re.search(r"/test_\w+\.py$", frame.f_code.co_filename):
            where = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{kind.__name__}: {textwrap.shorten(text, 300)}{where}"


if __name__ == "__main__":
    main()

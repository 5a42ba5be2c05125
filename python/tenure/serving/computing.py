"""The threads of a worker: those that execute jobs in order, and the one on which modules compute."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

__all__ = ["Computing", "Jobs", "execute"]

#: Jobs for one thread; None ends it.
Jobs = SimpleQueue[Callable[[], None] | None]


def execute(jobs: Jobs) -> None:
    """Executes jobs in order. A job that raises ends the process, as the server would wait for it forever."""
    try:
        while (job := jobs.get()) is not None:
            job()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class Computing:
    """Jobs in order, on the main thread, as in a user's own program.

    A thread whose niceness was raised keeps it, since only a privileged process can lower it again. So jobs that are to
    compete with other processes again go to a new thread.
    """

    def __init__(self) -> None:
        self._jobs: Jobs = SimpleQueue()
        #: The process's threads that do not compute, and keep their niceness.
        self.others: Sequence[threading.Thread] = ()

    def run(self) -> None:
        """Executes jobs on the calling thread for as long as the process lives."""
        execute(self._jobs)
        threading.Event().wait()

    def put(self, job: Callable[[], None]) -> None:
        """Adds a job."""
        self._jobs.put(job)

    def yield_processors(self, niceness: int) -> None:
        """Makes the current job, and those after it, yield the processors to other processes by this niceness."""
        others = {str(thread.native_id) for thread in self.others}
        for thread in Path("/proc/self/task").iterdir():
            # The threads of PyTorch's kernels are among these. A thread may have ended.
            with suppress(OSError):
                if thread.name not in others:
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)

    def compete(self) -> None:
        """Makes the jobs after this call compete for the processors again. Call it while no job is executed."""
        self._jobs.put(None)
        self._jobs = SimpleQueue()
        # The new thread inherits the niceness of this one.
        threading.Thread(target=execute, args=(self._jobs,), daemon=True).start()

"""A `tenure serve` of its own for the scripts beside this."""

import contextlib
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator


def write_models(tenure: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes the example models."""
    subprocess.run([tenure, "models", "init", folder], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def serving(
    tenure: pathlib.Path, folder: pathlib.Path, *options: object, processors: str | None = None, **environment: str
) -> Iterator[int]:
    """Serves models, on these processors if they are stated, and yields the port on 127.0.0.1."""
    command = [tenure, "serve", folder, "--listen", "127.0.0.1:0", *options]
    if processors is not None:
        command = ["taskset", "--cpu-list", processors, *command]
    environment = os.environ | environment
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        ports = (re.search(r"127\.0\.0\.1:(\d+)", line) for line in server.stdout)
        port = next(filter(None, ports), None)
        if port is None:
            raise SystemExit("the server does not start")
        yield int(port[1])
    finally:
        server.terminate()
        server.wait()

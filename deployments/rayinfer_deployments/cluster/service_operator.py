"""Operators' commands that reach a router by HTTP: they run where the `rayinfer` command would run them.

A service of `rayinfer serve` runs them in its own process. One of `serve deploy` has no such process: the command
itself is started, which joins the cluster for some seconds.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.control_client import ask

COMMAND = (sys.executable, "-c", "from rayinfer_deployments.cli import main; main()")
OPERATION_S = 700.0  # the service's own bounds are shorter


class SocketOperator:
    """Operator that sends commands to the process of `rayinfer serve`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def run(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run a command; raises RayinferError where the service refuses."""
        return await asyncio.to_thread(ask, self._path, operation, timeout_s=OPERATION_S, **arguments)


class CommandOperator:
    """Operator that starts the command for a deployed application."""

    def __init__(self, ray_address: str, application: str) -> None:
        self._where = (f"--address={ray_address}", f"--application={application}")

    async def run(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run a command; returns what it has written, raises RayinferError with its error."""
        command = [*COMMAND, *command_line(operation, arguments, self._where)]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(OPERATION_S):
                output, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            raise RayinferError(f"{operation} has not ended within {OPERATION_S:.0f} s") from None
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
            raise RayinferError(lines[-1])
        return {"output": output.decode(errors="replace").strip()}


def command_line(operation: str, arguments: Mapping[str, Any], where: tuple[str, ...]) -> list[str]:
    """Write a command's arguments; values of clients stand behind `=` or `--`, so that none becomes an option."""
    model = [] if arguments.get("model") is None else [f"--model={arguments['model']}"]
    if operation == "scale":
        number = arguments["num_engines"]
        return ["scale", *where, *model, "--", "auto" if number is None else json.dumps(number)]
    if operation == "drain":
        shrink = ["--shrink"] if arguments["shrink"] else []
        return ["drain", *where, *shrink, "--", arguments["engine"]]
    if operation == "reload":
        return ["reload", *where, *model, "--", arguments["source"]]
    raise RayinferError(f"this service knows no command {operation!r}")

"""Process in place of an agent of raylet, which starts no worker before its agents have written their ports.

Run by raylet as a script, without site packages: it is up in hundredths of a second, the agents take one. Without
arguments it only stays for as long as raylet does. With `ADDRESS PORT_FILE PORT_OPTION COMMAND...` it listens at the
address in the agent's place, and becomes the agent, on the same port, as soon as anything connects; raylet repeats
a request that was cut off.
"""

import contextlib
import os
import socket
import sys
import time

LOOK_S = 1.0  # between two looks whether raylet is still there


def stay(raylet: int) -> None:
    """Return once raylet has ended."""
    while os.getppid() == raylet:
        time.sleep(LOOK_S)


def become_agent_when_asked(raylet: int, address: str, port_file: str, port_option: str, command: list[str]) -> None:
    """Replace this process by `command` at the first connection; return once raylet has ended."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        port = listener.getsockname()[1]
        _write_whole(port_file, str(port))
        listener.settimeout(LOOK_S)
        while os.getppid() == raylet:
            with contextlib.suppress(TimeoutError):
                listener.accept()
                os.execv(command[0], [*command, f"{port_option}={port}"])  # which closes both sockets


def _write_whole(file: str, text: str) -> None:
    """Write a file that readers find complete or not at all."""
    with open(f"{file}.new", "w") as new:  # noqa: PTH123 - pathlib takes longer to import than all else here
        new.write(text)
    os.replace(f"{file}.new", file)  # noqa: PTH105


if __name__ == "__main__":
    parent = int(os.environ["RAY_RAYLET_PID"])
    if len(sys.argv) > 1:
        _, own_address, file, option, *agent = sys.argv
        become_agent_when_asked(parent, own_address, file, option, agent)
    else:
        stay(parent)

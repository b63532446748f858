"""State of another process, as the operating system reports it."""

from pathlib import Path


def is_stopped(process_id: int) -> bool:
    """Return whether a process was stopped, by a signal or a debugger; it computes nothing until it is continued.

    False where there is no such process, or the system has no /proc.
    """
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return False
    # The command's name stands in parentheses and may hold anything, parentheses and spaces too.
    return stat[stat.rindex(")") + 2] in "Tt"

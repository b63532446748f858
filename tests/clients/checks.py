"""Runner of a client's checks; standard library only, as it runs in the client's own environment.

A script of checks is called with the service's URL and the model's name:

    python openai_check.py http://127.0.0.1:8000 smollm2-135m
"""

import asyncio
import inspect
import sys
import traceback
from collections.abc import Mapping
from typing import Any


def run_checks(names: Mapping[str, Any], *arguments: str) -> None:
    """Run all functions whose names begin with `check_`, in order; exits with 1 if any failed."""
    given = arguments or tuple(sys.argv[1:])
    has_failed = False
    for name, check in names.items():
        if not name.startswith("check_"):
            continue
        label = name.removeprefix("check_").replace("_", " ")
        try:
            outcome = check(*given)
            if inspect.isawaitable(outcome):
                asyncio.run(_awaited(outcome))
        except Exception as error:
            has_failed = True
            print(f"FAILED {label}: {type(error).__name__}: {error}".splitlines()[0][:300])
            traceback.print_exc(file=sys.stderr)
        else:
            print(f"ok {label}")
    sys.exit(has_failed)


async def _awaited(outcome: Any) -> Any:
    return await outcome

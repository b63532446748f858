"""A Ray with Serve in a process of its own, which runs commands from stdin: a JSON line each way.

Run it as a program: `service_host.py '{"proxy_port": null, "num_cpus": 2}'`. It ends, with all its processes, when
stdin does. `faulty_service.py` is its other end.
"""

import asyncio
import json
import os
import sys
import threading
from typing import Any

from rayinfer_deployments.cluster.ray_environment import set_ray_settings

set_ray_settings(owns_ray=True)  # before anything imports ray, which reads the environment

from ray import serve  # noqa: E402
from ray.serve.config import HTTPOptions, ProxyLocation  # noqa: E402
from ray.serve.schema import LoggingConfig  # noqa: E402

from rayinfer_deployments.app_args import llm_app_args  # noqa: E402
from rayinfer_deployments.applications import build_llm_app  # noqa: E402
from rayinfer_deployments.cluster.managed_cluster import ManagedCluster  # noqa: E402
from rayinfer_deployments.operations.process_listing import identify, read_actors  # noqa: E402
from rayinfer_deployments.operations.service_operations import ServiceOperations  # noqa: E402

LOGGING = LoggingConfig(enable_access_log=False, log_level="WARNING")


def deploy(name: str, args: dict[str, Any]) -> None:
    """Hand an application over; one of that name is replaced. Does not wait until it is ready."""
    target = serve.RunTarget(
        build_llm_app(llm_app_args(args)), name=name, route_prefix=f"/{name}", logging_config=LOGGING
    )
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def scale(name: str, args: dict[str, Any], num_engines: int) -> None:
    """Change how many engines each model has as `rayinfer scale` does: by a deployment in place."""
    operations = ServiceOperations(name, llm_app_args(args), route_prefix=f"/{name}")
    asyncio.run(operations.scale(num_engines))


def status(name: str) -> dict[str, Any]:
    """Report Serve's status of an application."""
    overview = serve.status().applications.get(name)
    if overview is None:
        return {"status": "NONE", "message": ""}
    messages = [overview.message, *(deployment.message for deployment in overview.deployments.values())]
    return {"status": overview.status.value, "message": "\n".join(filter(None, messages))}


def processes(address: str, name: str) -> list[dict[str, Any]]:
    """List an application's processes, as `rayinfer ps` does."""
    found = identify(read_actors(address), name, {})
    return [
        {"pid": process.pid, "role": process.role, "group": process.group, "rank": process.rank} for process in found
    ]


def run_command(command: dict[str, Any], ray: ManagedCluster) -> Any:
    """Carry out one command."""
    name = command["name"]
    match command["do"]:
        case "deploy":
            return deploy(name, command["args"])
        case "scale":
            # Returns once the engines are there: the caller polls.
            threading.Thread(target=scale, args=(name, command["args"], command["num_engines"]), daemon=True).start()
            return None
        case "delete":
            # Serve waits for the last process, which may take a while: the caller polls.
            threading.Thread(target=serve.delete, args=(name,), daemon=True).start()
            return None
        case "status":
            return status(name)
        case "processes":
            return processes(ray.address, name)
    raise ValueError(f"there is no command {command['do']!r}")


def main() -> None:
    """Serve until stdin ends."""
    settings = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever others print is no answer
    with ManagedCluster() as ray:
        port = settings["proxy_port"]
        location = ProxyLocation.Disabled if port is None else None
        serve.start(location, http_options=HTTPOptions(host="127.0.0.1", port=port or 0), logging_config=LOGGING)
        print(json.dumps("ready"), file=answers)
        for line in sys.stdin:
            ray.check()
            try:
                answer = {"answer": run_command(json.loads(line), ray)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()

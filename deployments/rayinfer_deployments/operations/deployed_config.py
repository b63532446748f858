"""Applications that `serve deploy` or `serve run` deployed from a file: their settings, as Serve has them.

Serve keeps the config it was given. Limits and numbers of replicas are changed under `deployments`, which replaces no
process; all else stands under `args`, of which Serve makes one version: there a change replaces every replica, one
after another. The file on disk stays as it is, and the next `serve deploy` of it wins.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from rayinfer.errors import ConfigError, RayinferError
from rayinfer.routing.limits import router_limits
from rayinfer_deployments.app_args import LLMAppArgs, ModelArgs, llm_app_args
from rayinfer_deployments.applications import ROUTER, engine_deployment_name
from rayinfer_deployments.config_check import is_our_builder

Details = Mapping[str, Any]  # as Serve describes its applications


def read_details() -> Details:
    """Ask Serve's controller about all applications; raises RayinferError where Serve does not run."""
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        raise RayinferError("Serve does not run on this Ray cluster: deploy a service with `serve deploy`")
    details: Details = client.get_serve_details()
    return details


def find_application(details: Details, name: str | None) -> str:
    """Find an application of ours by its name, or the only one; raises RayinferError when that is not clear."""
    applications: Mapping[str, Mapping[str, Any]] = details["applications"]
    ours = [known for known, application in applications.items() if _why_not_ours(application) is None]
    if name is None and len(ours) == 1:
        return ours[0]
    if name is None and ours:
        raise RayinferError(f"several services are deployed: choose one with --application (there are: {_list(ours)})")
    if name is None:
        raise RayinferError(f"no rayinfer service is deployed from a file (applications: {_list(applications)})")
    if name not in applications:
        raise RayinferError(f"there is no application {name!r} (there are: {_list(applications)})")
    if (reason := _why_not_ours(applications[name])) is not None:
        raise RayinferError(f"application {name!r} cannot be operated here: {reason}")
    return name


def args_of(config: Mapping[str, Any]) -> LLMAppArgs:
    """Read the settings with which an application runs: those of `args`, and above them those of `deployments`."""
    args = original_args_of(config)
    overrides = {each["name"]: each for each in config.get("deployments") or []}
    router = overrides.get(ROUTER, {})
    changes: dict[str, Any] = {"models": []}
    if router.get("user_config") is not None:
        changes["limits"] = router_limits(router["user_config"])
    if isinstance(router.get("num_replicas"), int):
        changes["num_routers"] = router["num_replicas"]
    for index, model in enumerate(args.models):
        number = overrides.get(engine_deployment_name(index, model), {}).get("num_replicas")
        counted = {"num_replicas": number} if isinstance(number, int) and model.autoscaling is None else {}
        changes["models"].append(model.model_copy(update=counted))
    return args.model_copy(update=changes)


def original_args_of(config: Mapping[str, Any]) -> LLMAppArgs:
    """Read what stands under `args` alone."""
    return llm_app_args(config.get("args") or {})


class DeployedConfig:
    """The config of one application, as Serve has it."""

    def __init__(self, application: str, config: Mapping[str, Any]) -> None:
        self._application = application
        self.args = args_of(config)

    def deploy(self, args: LLMAppArgs) -> None:
        """Deploy Serve's present configs again, with this application's settings changed; does not wait."""
        client, details = _get_global_client(), read_details()
        schema = schema_with(details, self._application, lambda config: changed(config, self.args, args))
        client.deploy_apps(ServeDeploySchema.model_validate(schema))
        self.args = args


def schema_with(
    details: Details, application: str, change: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Write what Serve has from files with one application's config changed; Serve deletes what is left out."""
    configs = {
        name: known["deployed_app_config"]
        for name, known in details["applications"].items()
        if known.get("deployed_app_config") is not None
    }
    if application not in configs:
        raise RayinferError(f"application {application!r} is not deployed from a file any more")
    configs[application] = change(configs[application])
    return {"applications": list(configs.values()), "target_capacity": details.get("target_capacity")}


def changed(config: Mapping[str, Any], before: LLMAppArgs, after: LLMAppArgs) -> dict[str, Any]:
    """Write the differences between two settings into an application's config.

    Raises ConfigError for other bounds of a model that follows its load: that would replace every process.
    """
    new: dict[str, Any] = copy.deepcopy(dict(config))
    if after.limits != before.limits:
        _override(new, ROUTER)["user_config"] = after.limits.model_dump(mode="json")
    for index, (old, wanted) in enumerate(zip(before.models, after.models, strict=True)):
        if wanted.num_replicas != old.num_replicas:
            _override(new, engine_deployment_name(index, old))["num_replicas"] = wanted.num_replicas
        settings = _changed_settings(old, wanted)
        if set(settings) == {"autoscaling"}:
            raise ConfigError(
                f"how many engines model {old.served_name!r} has follows its load within the bounds of its file; "
                "other bounds take `serve deploy`"
            )
        new["args"]["models"][index].update(settings)
    return new


def _changed_settings(old: ModelArgs, wanted: ModelArgs) -> dict[str, Any]:
    before, after = (model.model_dump(mode="json", exclude={"num_replicas"}) for model in (old, wanted))
    return {name: value for name, value in after.items() if value != before[name]}


def _override(config: dict[str, Any], deployment: str) -> dict[str, Any]:
    """Find a config's entry for a deployment, or add an empty one."""
    overrides: list[dict[str, Any]] = config.setdefault("deployments", [])
    for override in overrides:
        if override["name"] == deployment:
            return override
    overrides.append({"name": deployment})
    return overrides[-1]


def _why_not_ours(application: Mapping[str, Any]) -> str | None:
    """Return why an application's settings cannot be read and changed; None where they can."""
    config = application.get("deployed_app_config")
    if config is None:
        return "a program has deployed it, as `rayinfer serve` does, and that program alone can change it"
    if not is_our_builder(config["import_path"]):
        return f"it is not rayinfer's, its import_path is {config['import_path']!r}"
    return None


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"

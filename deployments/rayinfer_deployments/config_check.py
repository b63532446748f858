"""Strict checks of config files for `serve deploy`: Serve itself silently ignores unknown names."""

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeDeploySchema

from rayinfer.errors import ConfigError
from rayinfer.routing.limits import router_limits
from rayinfer.setting_names import describe_validation_error
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.applications import ROUTER, engine_deployment_name
from rayinfer_deployments.strict_yaml import load_strictly

OUR_BUILDER = "rayinfer_deployments.applications:build_llm_app"


def mistakes_in(file: Path) -> list[str]:
    """List what is wrong with a Serve config file, a line each with the key at fault; raises OSError."""
    try:
        config = load_strictly(file.read_text())
    except yaml.YAMLError as error:
        return [f"no YAML: {' '.join(str(error).split())}"]
    if not isinstance(config, dict):
        return ["no Serve config: it holds no names"]
    if unknown := list(_unknown_keys(config, ServeDeploySchema, "")):
        return unknown
    try:
        ServeDeploySchema.model_validate(config)
    except ValidationError as error:
        return [describe_validation_error(error)]
    return [
        f"applications.{index}.{mistake}"
        for index, application in enumerate(config["applications"])
        if is_our_builder(application["import_path"])
        for mistake in _mistakes_in_our_application(application)
    ]


def is_our_builder(import_path: str) -> bool:
    """Return whether a config's import_path names our function; Serve accepts a dot for the colon."""
    return import_path.replace(":", ".") == OUR_BUILDER.replace(":", ".")


def _mistakes_in_our_application(application: Mapping[str, Any]) -> Iterator[str]:
    try:
        args = llm_app_args(application.get("args") or {})
    except ConfigError as error:
        yield f"args.{error}"
        return
    names = {ROUTER, *(engine_deployment_name(index, model) for index, model in enumerate(args.models))}
    for index, deployment in enumerate(application.get("deployments") or []):
        place = f"deployments.{index}"
        if deployment["name"] not in names:
            known = ", ".join(sorted(names))
            yield f"{place}.name: the application has no deployment {deployment['name']!r} (it has: {known})"
        elif "user_config" in deployment:
            yield from _mistakes_in_user_config(deployment, place)


def _mistakes_in_user_config(deployment: Mapping[str, Any], place: str) -> Iterator[str]:
    if deployment["name"] != ROUTER:
        yield f"{place}.user_config: only the router has settings that change while it runs"
        return
    try:
        router_limits(deployment["user_config"] or {})
    except ConfigError as error:
        yield f"{place}.user_config.{error}"


def _unknown_keys(config: Mapping[str, Any], schema: type[BaseModel], place: str) -> Iterator[str]:
    """List keys of a config that its schema lacks, down to where the schema leaves the content open."""
    fields = {field.alias or name: field for name, field in schema.model_fields.items()} | schema.model_fields
    for key, value in config.items():
        if key not in fields:
            yield f"{place}{key}: Serve knows no such name here (it knows: {', '.join(sorted(schema.model_fields))})"
            continue
        inner = _model_in(fields[key].annotation)
        if inner is None:
            continue
        if isinstance(value, dict):
            yield from _unknown_keys(value, inner, f"{place}{key}.")
        for index, entry in enumerate(value if isinstance(value, list) else []):
            if isinstance(entry, dict):
                yield from _unknown_keys(entry, inner, f"{place}{key}.{index}.")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the schema in `Schema`, `list[Schema]` or `Schema | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, list):
        return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)
    return None

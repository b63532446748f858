"""Read fields of custom resources from published packages: `read_published_types.py FOLDER > published_resources.yaml`.

FOLDER has the unpacked npm packages @kubernetes-models/gateway-api and prometheus-operator, and PyPI's kserve.
"""

import re
import sys
from pathlib import Path

import yaml

HEADER = """\
# Fields of custom resources as published packages have them, written by tests/kubernetes/read_published_types.py:
# Gateway API: @kubernetes-models/gateway-api 2.0.0 (npm, August 2026, MIT), made from its Go types (Apache-2.0)
# Prometheus operator: @kubernetes-models/prometheus-operator 6.0.0 (npm, August 2026, MIT), made from its Go types
# (Apache-2.0)
# KServe: kserve 0.21.0 (PyPI, Apache-2.0), models made from its OpenAPI document
# The notation is custom_resources.yaml's; `unlisted` is a type that no manifest uses, and that none may.
"""
KINDS = {
    "gateway.networking.k8s.io/v1 HTTPRoute": "HTTPRouteSpec",
    "monitoring.coreos.com/v1 PodMonitor": "PodMonitorSpec",
    "monitoring.coreos.com/v1 PrometheusRule": "PrometheusRuleSpec",
    "serving.kserve.io/v1alpha1 ServingRuntime": "V1alpha1ServingRuntimeSpec",
    "serving.kserve.io/v1beta1 InferenceService": "V1beta1InferenceServiceSpec",
}
TYPES = {
    "gateway-api": "HTTPRouteSpec ParentReference HTTPRouteRule HTTPRouteMatch HTTPPathMatch HTTPBackendRef"
    " HTTPRouteTimeouts",
    "prometheus-operator": "PodMonitorSpec PodMetricsEndpoint SafeAuthorization PrometheusRuleSpec RuleGroup Rule",
    "kserve": "V1alpha1ServingRuntimeSpec V1alpha1SupportedModelFormat V1beta1InferenceServiceSpec V1beta1PredictorSpec"
    " V1beta1ModelSpec V1beta1ModelFormat",
}
LISTED = {name for names in TYPES.values() for name in names.split()}
FOREIGN = (("IIoK8sApiCoreV1", "core.v1."), ("IIoK8sApimachineryPkgApisMetaV1", "meta.v1."))
FIELD = re.compile(r'^ {4}"(\w+)"(\?)?: (.*?);$(?=\n(?: {4}["a-z]|\}))', re.MULTILINE | re.DOTALL)
PYTHON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "ResourceQuantity": "quantity"}


def main(folder: Path) -> None:
    """Write kinds and types as YAML."""
    types = {}
    for package, names in TYPES.items():
        for name in names.split():
            types[name] = (_of_python if package == "kserve" else _of_typescript)(folder / package, name)
    print(HEADER + yaml.safe_dump({"kinds": KINDS, "types": types}, sort_keys=False, width=120), end="")


def _of_typescript(package: Path, name: str) -> dict[str, str]:
    (file,) = package.glob(f"*/v1/{name}.d.ts")
    text = re.sub(r"/\*\*.*?\*/\n", "", file.read_text(), flags=re.DOTALL)
    body = text.split("export declare class", 1)[1]  # with what it inherits
    fields = {
        field + ("" if optional else "!"): _typescript_type(file, kind) for field, optional, kind in FIELD.findall(body)
    }
    assert fields, f"{name}: no fields"
    return fields


def _typescript_type(file: Path, text: str) -> str:
    if array := re.fullmatch(r"Array<(.*)>", text, re.DOTALL):
        return f"[{_typescript_type(file, array[1])}]"
    if mapping := re.fullmatch(r"\{\s*\[key: string\]: (.*);\s*\}", text, re.DOTALL):
        return f"{{{_typescript_type(file, mapping[1])}}}"
    if text in ("string", "number", "boolean"):
        return text
    for prefix, replacement in FOREIGN:
        if text.startswith(prefix):
            return replacement + text.removeprefix(prefix)
    if text.endswith(("IntOrString", "ApiResourceQuantity")):
        return "quantity"
    name = re.sub(r"^I(IoK8sSigsGatewayApiApis|ComGithubPrometheusOperator\w*Monitoring)V1", "", text)
    definition = file.with_name(f"{name}.d.ts").read_text()
    alias = re.search(rf"export type I{name} = (.*?);", definition, re.DOTALL)
    if alias and '"' in alias[1]:
        return "=" + "|".join(re.findall(r'"([^"]*)"', alias[1]))
    return _typescript_type(file, alias[1]) if alias else _listed(name)


def _of_python(package: Path, name: str) -> dict[str, str]:
    file = re.sub(r"(?<!^)(?=[A-Z][a-z])", "_", name).lower()
    text = (package / "models" / f"{file}.py").read_text()
    kinds = dict(
        re.findall(r"^        '(\w+)': '([^']*)'", text.split("openapi_types = {")[1].split("}")[0], re.MULTILINE)
    )
    names = dict(
        re.findall(r"^        '(\w+)': '([^']*)'", text.split("attribute_map = {")[1].split("}")[0], re.MULTILINE)
    )
    required = set(re.findall(r"Invalid value for `(\w+)`, must not be `None`", text))
    return {names[key] + ("!" if key in required else ""): _python_type(kind) for key, kind in kinds.items()}


def _python_type(text: str) -> str:
    if array := re.fullmatch(r"list\[(.*)\]", text):
        return f"[{_python_type(array[1])}]"
    if mapping := re.fullmatch(r"dict\(str, (.*)\)", text):
        return f"{{{_python_type(mapping[1])}}}"
    if text in PYTHON_TYPES:
        return PYTHON_TYPES[text]
    return f"core.v1.{text[2:]}" if re.match("V1[A-Z]", text) else _listed(text)


def _listed(name: str) -> str:
    return name if name in LISTED else "unlisted"


if __name__ == "__main__":
    main(Path(sys.argv[1]))

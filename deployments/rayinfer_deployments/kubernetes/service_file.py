"""The file of `rayinfer build`: a service on Kubernetes with its models, machines, storage, keys and ingress."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rayinfer.config import describe_validation_error
from rayinfer.errors import ConfigError
from rayinfer_deployments.app_args import LLMAppArgs
from rayinfer_deployments.cluster.ray_environment import Profile
from rayinfer_deployments.engine.rank_placement import ONE_NODE
from rayinfer_deployments.kubernetes.cluster_settings import (
    AuthSettings,
    BatchSettings,
    HeadSettings,
    HighAvailabilitySettings,
    IngressSettings,
    KserveSettings,
    MonitoringSettings,
    NetworkPolicySettings,
    QueueSettings,
    StorageSettings,
    UpgradeSettings,
    WorkerGroup,
)

# What the rest of the file or the cluster settles.
SETTLED_ELSEWHERE = ("limits", "num_routers", "listen_host", "listen_port", "grpc_port", "tls_cert", "tls_key")


class ServiceFile(BaseModel):
    """One service; unknown keys are refused at every level."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        "rayinfer", pattern=r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$", description="name of the RayService and its objects"
    )
    image: str = Field("rayinfer:cpu", min_length=1, description="image with rayinfer, Ray and wget")
    image_pull_secrets: list[str] = Field([], description="secrets with the registry's credentials")
    profile: Profile = Field(Profile.LATENCY, description="what Serve and the routers are tuned for")
    app: dict[str, Any] = Field(
        description="arguments of build_llm_app: models, api_keys and the rest, as in a file for `serve deploy`"
    )
    limits: dict[str, Any] = Field({}, description="limits of the routers, which change while they run")
    routers: int = Field(1, ge=1, le=64, description="routers, which share the connections")
    request_timeout_s: float = Field(3600.0, gt=0, description="longest request through Serve's proxies")
    grpc: bool = Field(True, description="have Serve's proxies take KServe's gRPC calls on port 9000")
    head: HeadSettings = Field(default=HeadSettings(), description="the head's pod, which runs no replicas")
    workers: Annotated[list[WorkerGroup], Field(min_length=1, description="groups of equal pods")]
    autoscale_pods: bool = Field(False, description="let Ray's autoscaler add and remove pods within each group")
    storage: StorageSettings = Field(default=StorageSettings(), description="where model files come from")
    auth: AuthSettings | None = Field(None, description="Ray's token and the API keys, both from Secrets")
    high_availability: HighAvailabilitySettings | None = Field(
        None, description="Ray's table in Redis, so that a lost head takes nothing with it"
    )
    upgrade: UpgradeSettings = Field(default=UpgradeSettings(), description="how a new cluster takes over")
    network_policy: NetworkPolicySettings | None = Field(None, description="who may reach the pods, and whom they may")
    monitoring: MonitoringSettings | None = Field(
        None, description="PodMonitors, alerts and dashboards, for the Prometheus operator and Grafana"
    )
    ingress: IngressSettings | None = Field(None, description="HTTPRoute of the Gateway API, and the InferencePool")
    batch: BatchSettings | None = Field(None, description="a RayJob over a file of rows instead of a service")
    queue: QueueSettings | None = Field(None, description="Kueue's queues and their quotas")
    kserve: KserveSettings | None = Field(None, description="a ServingRuntime and an InferenceService instead")

    def app_args(self) -> LLMAppArgs:
        """Check the application's arguments as `serve deploy` would."""
        return LLMAppArgs(**self.app | {"limits": self.limits, "num_routers": self.routers})

    @property
    def longest_drain_s(self) -> int:
        """Longest time that an engine or router takes to end its requests."""
        return int(max(model.drain_timeout_s for model in self.app_args().models))

    @model_validator(mode="after")
    def _app_is_accepted(self) -> Self:
        if settled := [key for key in SETTLED_ELSEWHERE if key in self.app]:
            raise ValueError(f"app.{settled[0]}: not among the application's arguments here; the file settles it")
        try:
            self.app_args()
        except ValidationError as error:
            raise ValueError(_placed(describe_validation_error(error))) from None
        return self

    @model_validator(mode="after")
    def _groups_can_hold_the_engines(self) -> Self:
        names = [group.name for group in self.workers]
        if len(set(names)) < len(names):
            raise ValueError(f"workers: every group needs a name of its own, got {', '.join(names)}")
        for index, model in enumerate(self.app_args().models):
            ranks = model.num_ranks if model.placement_group_strategy == ONE_NODE else model.ranks_per_bundle
            gpus, cpus = ranks * model.num_gpus, ranks * model.num_cpus_per_rank
            if not any(group.gpus >= gpus and group.cpus >= cpus for group in self.workers):
                part = "an engine" if ranks == model.num_ranks else "each part of an engine"
                raise ValueError(
                    f"app.models.{index}: {part} takes {cpus:g} CPUs and {gpus:g} GPUs of one pod, and no group of"
                    " workers has as many"
                )
        return self

    @model_validator(mode="after")
    def _parts_fit_each_other(self) -> Self:
        if self.upgrade.strategy == "NewClusterWithIncrementalUpgrade" and not self.autoscale_pods:
            raise ValueError("upgrade.strategy: an incremental upgrade needs autoscale_pods")
        if self.batch is not None and self.kserve is not None:
            raise ValueError("batch and kserve exclude each other: give one of them")
        if self.monitoring is not None and (self.batch is not None or self.kserve is not None):
            raise ValueError("monitoring: a job or KServe's runtime has none; remove it or batch and kserve")
        if self.kserve is not None and self.autoscale_pods:
            raise ValueError("kserve: one pod holds all, so autoscale_pods has no effect")
        return self


def _placed(description: str) -> str:
    """Say in which part of the file the fields of LLMAppArgs lie."""
    parts = description.split("; ")
    return "; ".join(part if part.startswith("limits") else f"app.{part}" for part in parts)


def service_of(settings: dict[str, Any]) -> ServiceFile:
    """Check settings; raises ConfigError that names every field at fault."""
    try:
        return ServiceFile.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error)) from None

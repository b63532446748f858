"""The file of `rayinfer build`: a service on Kubernetes with its models, machines, storage, keys and ingress."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rayinfer.errors import ConfigError
from rayinfer.setting_names import describe_validation_error
from rayinfer_deployments.app_args import LLMAppArgs
from rayinfer_deployments.cluster.ray_environment import Profile, cluster_settings
from rayinfer_deployments.engine.rank_placement import ONE_NODE
from rayinfer_deployments.kubernetes.cluster_settings import (
    AuthSettings,
    BatchSettings,
    HighAvailabilitySettings,
    IngressSettings,
    KserveSettings,
    MonitoringSettings,
    NetworkPolicySettings,
    QueueSettings,
    StorageSettings,
    UpgradeSettings,
)
from rayinfer_deployments.kubernetes.pod_settings import HeadSettings, WorkerGroup
from rayinfer_deployments.kubernetes.queue_limits import check_queue
from rayinfer_deployments.kubernetes.setting_types import ObjectName, VariableName

# What has no place in a job or in KServe's pod: parts of the file, and a model's settings that `rayinfer serve` lacks.
NOT_OF_JOBS = ("engines_apart", "ingress", "monitoring")
NOT_OF_ENGINES_IN_JOBS = ("seed",)
NOT_OF_KSERVE = ("engines_apart", "high_availability", "ingress", "limits", "monitoring", "queue")
NOT_OF_SERVE = (
    "autoscaling",
    "node_labels",
    "placement_group_strategy",
    "resources",
    "revision",
    "surge_percent",
    "tokenizer",
)

# Set in the containers by the manifests or KubeRay, which refuses a cluster that sets some of them itself.
OWN_VARIABLES = {
    *cluster_settings(throughput=True),
    *("HOME", "RAYINFER_CACHE", "RAYINFER_API_KEYS", "RAY_AUTH_TOKEN"),
    *("FQ_RAY_IP", "RAY_ADDRESS", "RAY_CLUSTER_NAME", "RAY_IP", "RAY_PORT", "RAY_enable_autoscaler_v2"),
    *("RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME"),
}

WRITABLE = ("/home/rayinfer", "/tmp")  # in the pods, whose root is read-only

# What the rest of the file or the cluster settles.
SETTLED_ELSEWHERE = ("limits", "num_routers", "listen_host", "listen_port", "grpc_port", "tls_cert", "tls_key")


class ServiceFile(BaseModel):
    """One service; unknown keys are refused at every level."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        "rayinfer", pattern=r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$", description="name of the RayService and its objects"
    )
    image: str = Field(
        "",
        pattern=r"^[!-~]*$",
        description="image with rayinfer, Ray and wget; default: rayinfer:cuda where workers have GPUs, else"
        " rayinfer:cpu",
    )
    image_pull_secrets: list[ObjectName] = Field([], description="secrets with the registry's credentials")
    env: dict[VariableName, str] = Field(
        {}, description="environment of the containers with that image, beside what the manifests set themselves"
    )
    env_secrets: list[ObjectName] = Field([], description="Secrets whose entries are environment too, such as HF_TOKEN")
    profile: Profile = Field(Profile.LATENCY, description="what Serve and the routers are tuned for")
    app: dict[str, Any] = Field(
        description="arguments of build_llm_app: models, api_keys and the rest, as in a file for `serve deploy`"
    )
    limits: dict[str, Any] = Field({}, description="limits of the routers, which change while they run")
    engines_apart: bool = Field(
        False, description="keep a model's engines in pods of their own, so that a lost pod takes one of them"
    )
    routers: int = Field(1, ge=1, le=64, description="routers, which share the connections")
    request_timeout_s: float = Field(3600.0, ge=1, le=86_400, description="longest request through Serve's proxies")
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

    @property
    def image_name(self) -> str:
        """Return the image of all containers with rayinfer."""
        return self.image or ("rayinfer:cuda" if any(group.gpus for group in self.workers) else "rayinfer:cpu")

    def app_args(self) -> LLMAppArgs:
        """Check the application's arguments as `serve deploy` would."""
        return LLMAppArgs(**self.app | {"limits": self.limits, "num_routers": self.routers})

    def placed_models(self) -> list[dict[str, Any]]:
        """Return the models' settings; with `engines_apart` each engine takes one of what every pod has one of."""
        models = [dict(model) for model in self.app["models"]]
        for index, model in enumerate(models if self.engines_apart else []):
            model["resources"] = {engine_place(index): 1}
            if model.get("autoscaling") and model.get("surge_percent") is None:
                model["surge_percent"] = 0  # there may be no free pod for the engine that takes another's place
        return models

    @property
    def batches_folder(self) -> str | None:
        """Return the folder of files and batches in the head's pod."""
        return self.app_args().batches_folder

    @property
    def batches_claim(self) -> str:
        """Return the claim that this folder lies on; empty where it lies in the pod and is lost with it."""
        if self.storage.batches_claim:
            return self.storage.batches_claim
        return self.models_claim if self.storage.kind == "pvc" else ""

    @property
    def models_claim(self) -> str:
        """Return the claim of the model files."""
        return self.storage.claim or f"{self.name}-models"

    @property
    def longest_drain_s(self) -> int:
        """Longest time that an engine or router takes to end its requests."""
        return int(max(model.drain_timeout_s for model in self.app_args().models))

    @model_validator(mode="after")
    def _variables_are_set_once(self) -> Self:
        if taken := sorted(set(self.env) & OWN_VARIABLES):  # the message shows no values: there may be secrets
            raise ValueError(f"env.{taken[0]}: the manifests or KubeRay set it themselves")
        return self

    @model_validator(mode="after")
    def _app_is_accepted(self) -> Self:
        if settled := [key for key in SETTLED_ELSEWHERE if key in self.app]:
            raise ValueError(f"app.{settled[0]}: not among the application's arguments here; the file settles it")
        try:
            self.app_args()
        except ValidationError as error:
            raise ValueError(_placed(describe_validation_error(error, LLMAppArgs))) from None
        if placed := [index for index, model in enumerate(self.app_args().models) if model.resources]:
            raise ValueError(f"app.models.{placed[0]}.resources: the pods have none; engines_apart gives them some")
        return self

    @model_validator(mode="after")
    def _batches_have_a_place(self) -> Self:
        folder = self.batches_folder
        if folder is None:
            if self.storage.batches_claim:
                raise ValueError("storage.batches_claim: without app.batches_folder there are no batches")
            return self
        path = PurePosixPath(folder)
        is_of_the_pod = any(path.is_relative_to(parent) for parent in WRITABLE)
        if not path.is_absolute() or ".." in path.parts or path.is_relative_to("/models") or folder == "/":
            raise ValueError(f"app.batches_folder: {folder} is no folder of its own, such as /home/rayinfer/batches")
        if not self.batches_claim and not is_of_the_pod:
            raise ValueError(
                f"app.batches_folder: {folder} cannot be written: give storage.batches_claim, or a folder in"
                f" {' or '.join(WRITABLE)}"
            )
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
    def _pods_can_hold_everything(self) -> Self:
        if self.batch is not None or self.kserve is not None:
            return self
        args = self.app_args()
        pods = [(group.most if self.autoscale_pods else group.pods, group) for group in self.workers]
        num_pods = sum(number for number, _ in pods)
        num_routers = num_pods if args.router_on_every_node else args.num_routers
        cpus, gpus = num_routers * args.router_num_cpus, 0.0
        for model in args.models:
            num_engines = model.autoscaling.min_replicas if model.autoscaling else model.num_replicas
            if self.engines_apart and num_engines > num_pods:
                raise ValueError(
                    f"engines_apart: the {num_engines} engines of {model.served_name} need a pod each, and there are"
                    f" {num_pods}"
                )
            ranks = model.num_ranks * num_engines
            cpus, gpus = cpus + ranks * model.num_cpus_per_rank, gpus + ranks * model.num_gpus
        has_cpus = sum(number * group.cpus for number, group in pods)
        has_gpus = sum(number * group.gpus for number, group in pods)
        if round(cpus, 3) > has_cpus or gpus > has_gpus:
            raise ValueError(
                f"workers: the engines and routers take {cpus:g} CPUs and {gpus:g} GPUs, and all pods have {has_cpus}"
                f" and {has_gpus}"
            )
        return self

    @model_validator(mode="after")
    def _queue_takes_it(self) -> Self:
        if self.queue is not None:
            check_queue(self.queue, self.head, self.workers, is_job=self.batch is not None, scales=self.autoscale_pods)
        return self

    @model_validator(mode="after")
    def _parts_fit_each_other(self) -> Self:
        if self.upgrade.strategy == "NewClusterWithIncrementalUpgrade" and not self.autoscale_pods:
            raise ValueError("upgrade.strategy: an incremental upgrade needs autoscale_pods")
        if self.upgrade.strategy == "NewClusterWithIncrementalUpgrade" and self.ingress is not None:
            raise ValueError(
                "ingress: in an incremental upgrade KubeRay's own Gateway moves the requests to the new cluster, and"
                " an HTTPRoute or InferencePool beside it would send them to the wrong one: point clients there"
            )
        has_keys = self.auth is not None or "api_keys" in self.app
        if (
            has_keys
            and self.ingress is not None
            and self.ingress.inference_pool
            and not self.app_args().open_load_metrics
        ):
            raise ValueError(
                "ingress.inference_pool: the endpoint picker sends no key, and gets 401 at /metrics: set"
                " app.open_load_metrics, and have it read /metrics/load"
            )
        if self.batch is not None and self.kserve is not None:
            raise ValueError("batch and kserve exclude each other: give one of them")
        if self.kserve is not None and self.autoscale_pods:
            raise ValueError("kserve: one pod holds all, so autoscale_pods has no effect")
        return self

    @model_validator(mode="after")
    def _nothing_is_lost_in_a_job_or_in_kserve(self) -> Self:
        if self.batch is None and self.kserve is None:
            return self
        models = self.app_args().models
        if len(models) > 1:
            raise ValueError(f"app.models: a job or KServe's pod has one model, got {len(models)}")
        model = models[0].model_fields_set
        if self.batch is not None:
            lost = [name for name in NOT_OF_JOBS if getattr(self, name)]
            lost += [f"app.models.0.{name}" for name in NOT_OF_ENGINES_IN_JOBS if name in model]
        else:
            lost = [name for name in NOT_OF_KSERVE if getattr(self, name)]
            lost += ["storage"] if self.storage.kind != "cache" else []
            lost += [f"app.{name}" for name in self.app if name not in ("models", "request_timeout_s")]
            lost += [f"app.models.0.{name}" for name in NOT_OF_SERVE if name in model]
        gpus = sum(group.pods * group.gpus for group in self.workers)
        if self.batch is not None and 0 < gpus < self.batch.workers:
            engines = f"batch.workers: {self.batch.workers} engines"
            raise ValueError(f"{engines}, and the pods have {gpus} GPUs: without one for each, all run on CPUs")
        if lost:
            kind = "a job" if self.batch is not None else "KServe's pod"
            raise ValueError(f"{kind} has no place for {', '.join(lost)}")
        return self


def engine_place(index: int) -> str:
    """Name the Ray resource of which each pod has one for an engine of a model."""
    return f"engine-{index}"


def _placed(description: str) -> str:
    """Say in which part of the file the fields of LLMAppArgs lie."""
    parts = description.split("; ")
    return "; ".join(part if part.startswith(("limits", "did you mean")) else f"app.{part}" for part in parts)


def service_of(settings: dict[str, Any]) -> ServiceFile:
    """Check settings; raises ConfigError that names every field at fault."""
    try:
        return ServiceFile.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error, ServiceFile)) from None

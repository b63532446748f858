"""The floors of the house, as data: a room may import itself and what lies below it."""

# From the ground up. A room is a package or a module by its dotted name; it covers everything beneath that name, but
# for the rooms within it that are listed too.
FLOORS: tuple[tuple[str, ...], ...] = (
    (
        "rayinfer_kernels",
        "rayinfer.tensor_parallel",
        "rayinfer.outputs",
        "rayinfer.predictions",
        "rayinfer.errors",
        "rayinfer.metrics",
        "rayinfer.startup_steps",
        "rayinfer.liveness",
        "rayinfer.progress_bar",
        "rayinfer.entry_points",
        "rayinfer.setting_names",
    ),
    (
        "rayinfer.attention",
        "rayinfer.images",
        "rayinfer.tokenization",
        "rayinfer.tool_calls",
        "rayinfer.config",
        "rayinfer.error_kinds",
        "rayinfer.grammars",
        "rayinfer.sampling_params",
        "rayinfer.sampling_defaults",
        "rayinfer.priority_queue",
        "rayinfer.traces",
        "rayinfer.wire",
    ),
    (
        "rayinfer.layers",
        "rayinfer.decoding",
        "rayinfer.kv_cache",
        "rayinfer.kv_store",
        "rayinfer.protocols",
        "rayinfer.prediction_outputs",
        "rayinfer.prediction_specs",
        "rayinfer.token_entities",
        "rayinfer.credits",
        "rayinfer.client",
    ),
    ("rayinfer.access", "rayinfer.batches", "rayinfer.beam_search", "rayinfer.kv_transfer"),
    (
        "rayinfer.models",
        "rayinfer.adapters",
        "rayinfer.optimization",
        "rayinfer.servers",
        "rayinfer.routing",
        "rayinfer.prediction_cache",
        "rayinfer.transport",
    ),
    ("rayinfer.engine.plan", "rayinfer.engine.drafting"),
    ("rayinfer.engine.scheduling", "rayinfer.engine.ranks"),
    ("rayinfer.engine.worker",),
    ("rayinfer.engine.loop", "rayinfer.engine.distributed"),
    ("rayinfer.engine", "rayinfer.predictors"),
    ("rayinfer.llm",),
    ("rayinfer.jobs", "rayinfer.benchmark"),
    ("rayinfer.planning",),
    ("rayinfer_deployments.cluster", "rayinfer_deployments.strict_yaml"),
    ("rayinfer_deployments.discovery", "rayinfer_deployments.model_files"),
    ("rayinfer_deployments.engine", "rayinfer_deployments.router"),
    ("rayinfer_deployments.app_args",),
    ("rayinfer_deployments.applications", "rayinfer_deployments.reservations"),
    ("rayinfer_deployments.config_check",),
    ("rayinfer_deployments.monitoring",),
    ("rayinfer_deployments.kubernetes",),
    ("rayinfer_deployments.operations",),
    ("rayinfer_deployments.overhead",),
    ("rayinfer_deployments.cli",),
    ("rayinfer_deployments",),
)

# (who imports, what is imported): why two rooms of one floor may know each other. The second may not import the first.
NEIGHBORS: dict[tuple[str, str], str] = {
    ("rayinfer.kv_store", "rayinfer.kv_cache"): "a store loads into an engine's pool; pools know no stores",
    ("rayinfer.benchmark", "rayinfer.jobs"): "it measures the loop of jobs; they know no benchmarks",
    ("rayinfer.outputs", "rayinfer.predictions"): "an output may be a prediction; predictions imports nothing",
    ("rayinfer.metrics", "rayinfer.outputs"): "metrics count what outputs define; outputs imports nothing of ours",
    ("rayinfer.tensor_parallel", "rayinfer.errors"): "too many ranks are a caller's mistake; errors imports nothing",
    ("rayinfer.entry_points", "rayinfer.errors"): "a package that cannot be imported is a model that cannot be loaded",
    ("rayinfer.setting_names", "rayinfer.errors"): "wrong values are shown as in errors, which imports nothing",
    ("rayinfer.sampling_defaults", "rayinfer.sampling_params"): "they are checked as a request's parameters are",
    ("rayinfer.sampling_params", "rayinfer.grammars"): "a grammar is a parameter; grammars know no others",
    ("rayinfer.tool_calls", "rayinfer.grammars"): "calls that are required are written by a grammar",
    ("rayinfer.config", "rayinfer.sampling_params"): "requests and engines have one bound of drafts",
    ("rayinfer.config", "rayinfer.sampling_defaults"): "a setting overrides them; they know no settings",
    ("rayinfer.token_entities", "rayinfer.prediction_outputs"): "both read predictions; outputs know no entities",
    ("rayinfer.credits", "rayinfer.protocols"): "they are shares of what a description tells",
    ("rayinfer.adapters", "rayinfer.models"): "it reads adapters of decoders, which know nothing of their files",
    ("rayinfer.optimization", "rayinfer.models"): "it changes how decoders keep their weights; they know nothing of it",
}

# They only hand out names lazily, so that importing a package costs nothing; they stand on no floor.
LAZY_EXPORTS = frozenset({"rayinfer"})

RAY_ROOMS = ("rayinfer.jobs", "rayinfer_deployments")

# Rooms and modules that a process without a model imports: they must not load torch.
TORCH_FREE_ROOMS = (
    "rayinfer.servers",
    "rayinfer.routing",
    "rayinfer.prediction_cache",
    "rayinfer.transport",
    "rayinfer.images",
    "rayinfer.tokenization",
    "rayinfer.tool_calls",
    "rayinfer.traces",
    "rayinfer.client",
    "rayinfer.access",
    "rayinfer.grammars",
    "rayinfer.kv_store",
    "rayinfer.kv_transfer",
)
TORCH_FREE_MODULES = (
    "rayinfer",
    "rayinfer.config",
    "rayinfer.protocols",
    "rayinfer.prediction_outputs",
    "rayinfer.prediction_specs",
    "rayinfer.token_entities",
    "rayinfer.models.predictor_kind",
    "rayinfer.liveness",
    "rayinfer.wire",
    "rayinfer.models.checkpoints.sources",
    "rayinfer.kv_cache.adapter_id",
    "rayinfer.kv_cache.block_hash",
    "rayinfer_deployments.router.router",
)

# The command line starts fast: a subcommand imports its room when it runs. A prefix: cli, cli_serve, cli.serve.
COMMAND_LINE = "rayinfer_deployments.cli"

# What runs under the interpreters of peers, whose packages are no dependencies of ours.
FOREIGN_ROOMS = ("rayinfer.benchmark.peers.engine_worker", "rayinfer.benchmark.predictors.runtime_worker")

# module: why it may read or set environment variables.
ENVIRONMENT_MODULES: dict[str, str] = {
    "rayinfer.config": "the one reader of the environment",
    "rayinfer_deployments.cluster.ray_environment": "settings that Ray takes from the environment only",
    "rayinfer_deployments.cluster.idle_agent": "raylet names itself to its agents; a script without imports",
}

# The kernels' public modules; benchmarks of single kernels may import the others.
KERNELS = "rayinfer_kernels"
KERNEL_FRONT = (KERNELS, f"{KERNELS}.ops")
KERNEL_BENCHMARKS = "rayinfer.benchmark.gpu"

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_FOLDER_FILES = 20

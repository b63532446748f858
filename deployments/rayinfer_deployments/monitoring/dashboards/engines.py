"""Dashboard of the engines: presence, batches, KV cache, steps and LoRA adapters."""

from rayinfer.metrics import metric_list
from rayinfer_deployments.monitoring.panels import DASHBOARD, Dashboard, Panel, Query, Row
from rayinfer_deployments.monitoring.recording_rules import ENGINES as ENGINE_COUNT
from rayinfer_deployments.monitoring.recording_rules import LOST

ENGINE = ("model_name", "engine")
LEGEND = "{{model_name}} {{engine}}"

PRESENCE_ROW = Row(
    "Presence",
    [
        Panel(
            title="Engines",
            description="Engines that routers are connected to; fewer than expected: see `rayinfer status`.",
            unit="short",
            queries=[Query(DASHBOARD.series(ENGINE_COUNT), "{{model_name}}")],
        ),
        Panel(
            title="Engines by state",
            description="running, paused or asleep.",
            unit="short",
            is_stacked=True,
            queries=[
                Query(
                    f"{DASHBOARD.largest(metric_list.ENGINES, ['model_name', 'state'])} > 0",
                    "{{model_name}} {{state}}",
                )
            ],
        ),
        Panel(
            title="Lost engines in the last hour",
            description="Engines that ended without being drained.",
            unit="short",
            queries=[Query(DASHBOARD.series(LOST), "{{model_name}}")],
        ),
        Panel(
            title="Migrations",
            description="Streams that went on with another engine, as theirs was lost or drained.",
            unit="suffix: /s",
            queries=[Query(DASHBOARD.rate(metric_list.MIGRATIONS, ["model_name"]), "{{model_name}}")],
        ),
        Panel(
            title="Gap of migrated streams",
            description="Last token on the lost engine to the next one on another: median and 95th percentile.",
            unit="s",
            queries=[
                Query(DASHBOARD.quantile(0.5, metric_list.MIGRATION_GAP, ["model_name"]), "{{model_name}} p50"),
                Query(DASHBOARD.quantile(0.95, metric_list.MIGRATION_GAP, ["model_name"]), "{{model_name}} p95"),
            ],
        ),
        Panel(
            title="Sleeping engines",
            description="1 while an engine is asleep.",
            unit="short",
            most=1,
            queries=[Query(DASHBOARD.largest(metric_list.SLEEP_STATE, ENGINE, sleep_state="asleep"), LEGEND)],
        ),
    ],
)
BATCH_ROW = Row(
    "Batches",
    [
        Panel(
            title="Running requests",
            description="Requests in each engine's batch.",
            unit="short",
            queries=[Query(DASHBOARD.total(metric_list.NUM_RUNNING, ENGINE), LEGEND)],
        ),
        Panel(
            title="Waiting requests",
            description="Requests that wait in each engine, and in front of all (router).",
            unit="short",
            queries=[Query(DASHBOARD.total(metric_list.NUM_WAITING, ENGINE), LEGEND)],
        ),
        Panel(
            title="Steps",
            description="Steps a second; between long prompts and idle engines it is low.",
            unit="suffix: steps/s",
            queries=[Query(DASHBOARD.rate(metric_list.STEPS, ENGINE), LEGEND)],
        ),
        Panel(
            title="Tokens of a step",
            description="Mean number of tokens, of prompts and answers, in a step: its batch's size.",
            unit="suffix: tokens",
            queries=[Query(DASHBOARD.mean(metric_list.STEP_TOKENS, ENGINE), LEGEND)],
        ),
        Panel(
            title="Idle stages of pipelines",
            description="Share of the time with work in which a stage waited for others, since the engine's start.",
            unit="percentunit",
            most=1,
            queries=[
                Query(
                    DASHBOARD.largest(metric_list.STAGE_IDLE_SHARE, [*ENGINE, "stage"]),
                    "{{model_name}} {{engine}} stage {{stage}}",
                )
            ],
        ),
    ],
)
MEMORY_ROW = Row(
    "KV cache",
    [
        Panel(
            title="KV blocks with readers",
            description="Share of an engine's KV blocks that running requests use.",
            unit="percentunit",
            most=1,
            queries=[Query(DASHBOARD.largest(metric_list.KV_CACHE_USAGE, ENGINE), LEGEND)],
        ),
        Panel(
            title="KV blocks",
            description="Blocks in use, and all blocks, of all engines of a model.",
            unit="short",
            queries=[
                Query(DASHBOARD.total(metric_list.KV_BLOCKS_USED, ["model_name"]), "{{model_name}} used"),
                Query(DASHBOARD.total(metric_list.KV_BLOCKS_TOTAL, ["model_name"]), "{{model_name}} all"),
            ],
        ),
        Panel(
            title="Preemptions",
            description="Requests that lost their blocks to others and are computed again: memory is short.",
            unit="suffix: /s",
            queries=[Query(DASHBOARD.rate(metric_list.NUM_PREEMPTIONS, ENGINE), LEGEND)],
        ),
        Panel(
            title="Prompt tokens found in the prefix cache",
            description="Share of the prompt tokens that need not be computed.",
            unit="percentunit",
            most=1,
            queries=[
                Query(
                    f"{DASHBOARD.rate(metric_list.PREFIX_CACHE_HITS, ENGINE)}"
                    f" / ({DASHBOARD.rate(metric_list.PREFIX_CACHE_QUERIES, ENGINE)} > 0)",
                    LEGEND,
                )
            ],
        ),
    ],
)
ADAPTER_ROW = Row(
    "LoRA adapters",
    [
        Panel(
            title="Adapters in memory",
            description="LoRA adapters that each engine has in memory: its requests wait for no other.",
            unit="short",
            queries=[Query(DASHBOARD.total(metric_list.ADAPTERS_RESIDENT, ENGINE), LEGEND)],
        ),
        Panel(
            title="Memory of adapters",
            description="Bytes of the tensors of these adapters in host memory, and of those that steps can use.",
            unit="bytes",
            queries=[
                Query(DASHBOARD.total(metric_list.ADAPTERS_RESIDENT_BYTES, ENGINE), LEGEND),
                Query(DASHBOARD.total(metric_list.ADAPTERS_SLOT_BYTES, ENGINE), LEGEND + " slots"),
            ],
        ),
        Panel(
            title="Loaded and evicted adapters",
            description="Adapters read from files, and those that made room: many of both ask for max_cpu_lora_bytes.",
            unit="suffix: /s",
            queries=[
                Query(DASHBOARD.rate(metric_list.ADAPTER_LOADS, [*ENGINE, "outcome"]), LEGEND + " {{outcome}}"),
                Query(DASHBOARD.rate(metric_list.ADAPTER_EVICTIONS, ENGINE), LEGEND + " evicted"),
            ],
        ),
        Panel(
            title="Mean time of a load",
            description="Reading and checking the files of an adapter, for which its first request waits.",
            unit="s",
            queries=[
                Query(
                    f"{DASHBOARD.rate(metric_list.ADAPTER_LOAD_SECONDS, ENGINE)}"
                    f" / ({DASHBOARD.rate(metric_list.ADAPTER_LOADS, ENGINE, outcome='loaded')} > 0)",
                    LEGEND,
                )
            ],
        ),
        Panel(
            title="Requests by adapter",
            description="Streams of each adapter that ended; the first 200 adapters of a router, and (other).",
            unit="reqps",
            is_stacked=True,
            queries=[
                Query(
                    DASHBOARD.rate(metric_list.ADAPTER_REQUESTS, ["model_name", "adapter"]),
                    "{{model_name}} {{adapter}}",
                )
            ],
        ),
    ],
)
ENGINES = Dashboard(
    name="engines",
    title="rayinfer: engines",
    description="Presence, batches, KV cache, steps and LoRA adapters of each engine.",
    rows=(PRESENCE_ROW, BATCH_ROW, MEMORY_ROW, ADAPTER_ROW),
)

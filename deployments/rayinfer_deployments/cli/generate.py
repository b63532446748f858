"""`rayinfer generate`: one prompt, continued in the terminal by an engine in this process."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from rayinfer.config import DEFAULT_MODEL
from rayinfer_deployments.cli.failures import in_one_line
from rayinfer_deployments.cli.options.config_options import with_engine_options
from rayinfer_deployments.cli.options.sampling_options import with_sampling_options


@in_one_line
@with_engine_options
@with_sampling_options(max_tokens=128)
def generate(
    prompt: Annotated[str, typer.Argument(help="the text to continue")],
    model: Annotated[
        str, typer.Option(help="folder, GGUF file, Hugging Face repository or embedded name")
    ] = DEFAULT_MODEL,
    sampling: dict[str, Any] = {},  # noqa: B006 - filled by with_sampling_options
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Continue a prompt, without a server."""
    from rayinfer.llm import LLM
    from rayinfer.sampling_params import SamplingParams

    SamplingParams(**sampling)  # refuses wrong values before the model is loaded
    with LLM(model, **engine_settings) as llm:
        params = replace(llm.get_default_sampling_params(), **sampling)
        for output in llm.stream(prompt, params):
            typer.echo(output.outputs[0].text, nl=False)
    typer.echo()

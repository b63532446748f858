"""Beam search with the engine of this process."""

from collections.abc import Callable

from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from rayinfer.beam_search.prompt_searches import PromptSearches
from rayinfer.outputs import RequestOutput
from rayinfer.progress_bar import progress_bar
from rayinfer.sampling_params import SamplingParams


def search_beams(
    prompts: list[list[int]],
    searches: PromptSearches,
    compute: Callable[[list[list[int]], list[SamplingParams]], list[RequestOutput]],
    *,
    use_tqdm: bool,
) -> list[RequestOutput]:
    """Run all searches by steps that `compute` computes, and return their outputs by prompt."""
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn(), shown=use_tqdm) as progress:
        task = progress.add_task("Searching", total=len(prompts))
        while requests := searches.requests():
            searches.apply(compute(*map(list, zip(*requests, strict=True))))
            progress.update(task, completed=searches.num_finished)
    found = zip(prompts, searches.outputs(), searches.num_cached_tokens, strict=True)
    return [
        RequestOutput(
            request_id=f"beam-search-{number}",
            prompt_token_ids=prompt,
            outputs=outputs,
            num_cached_tokens=num_cached,
            finished=True,
        )
        for number, (prompt, outputs, num_cached) in enumerate(found)
    ]

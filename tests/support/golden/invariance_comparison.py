"""Compares everything that a request got with what it got alone."""

from collections.abc import Mapping, Sequence

from rayinfer.outputs import CompletionOutput, RequestOutput, TokenLogprobs

NEAR = 1e-4  # between two log probabilities: what float32 may make of them in another batch

Places = Sequence[TokenLogprobs | None]


def differences(expected: Mapping[str, RequestOutput], got: Mapping[str, RequestOutput]) -> list[str]:
    """Say in one line each what is not as expected; `num_cached_tokens` may differ."""
    if missing := expected.keys() ^ got.keys():
        return [f"answered in one case only: {sorted(missing)}"]
    return [f"{name!r}: {found}" for name in expected for found in _in_outputs(expected[name], got[name])]


def _in_outputs(expected: RequestOutput, got: RequestOutput) -> list[str]:
    found = _unequal(expected, got, ("prompt_token_ids", "finished"))
    found += in_places("prompt_logprobs", expected.prompt_logprobs, got.prompt_logprobs)
    if len(expected.outputs) != len(got.outputs):
        return [*found, f"{len(expected.outputs)} choices expected, got {len(got.outputs)}"]
    for one, other in zip(expected.outputs, got.outputs, strict=True):
        found += [f"choice {one.index}: {difference}" for difference in _in_choices(one, other)]
    return found


def _in_choices(expected: CompletionOutput, got: CompletionOutput) -> list[str]:
    found = _unequal(expected, got, ("index", "token_ids", "text", "finish_reason", "stop_reason"))
    return found + in_places("logprobs", expected.logprobs, got.logprobs)


def _unequal(expected: object, got: object, names: Sequence[str]) -> list[str]:
    pairs = ((name, getattr(expected, name), getattr(got, name)) for name in names)
    return [f"{name}: expected {one!r}, got {other!r}" for name, one, other in pairs if one != other]


def in_places(name: str, expected: Places | None, got: Places | None) -> list[str]:
    """Compare log probabilities position by position: the same tokens in the same order."""
    if expected is None or got is None or len(expected) != len(got):
        sizes = [None if places is None else len(places) for places in (expected, got)]
        return [] if expected is got else [f"{name}: {sizes[0]} places expected, got {sizes[1]}"]
    return [
        f"{name}[{index}]: expected {one}, got {other}"
        for index, (one, other) in enumerate(zip(expected, got, strict=True))
        if not _are_alike(one, other)
    ]


def _are_alike(expected: TokenLogprobs | None, got: TokenLogprobs | None) -> bool:
    if expected is None or got is None:
        return expected is got
    if next(iter(expected)) != next(iter(got)) or len(expected) != len(got):
        return False
    if any(abs(expected[token_id].logprob - got[token_id].logprob) > NEAR for token_id in expected.keys() & got.keys()):
        return False
    told = expected | got
    moved = [token_id for token_id in told if _rank(expected, token_id) != _rank(got, token_id)]
    return all(_has_near_tie(told, token_id) or _is_one_apart(expected, got, token_id) for token_id in moved)


def _rank(place: TokenLogprobs, token_id: int) -> int | None:
    return place[token_id].rank if token_id in place else None


def _has_near_tie(place: TokenLogprobs, token_id: int) -> bool:
    """Return whether another token is as likely but for a rounding, so that the two may stand in each other's place."""
    return any(
        other != token_id and abs(known.logprob - place[token_id].logprob) <= NEAR for other, known in place.items()
    )


def _is_one_apart(expected: TokenLogprobs, got: TokenLogprobs, token_id: int) -> bool:
    """Return whether a token has changed places with one without a logprob, so that they may be equally likely."""
    ranks = [_rank(expected, token_id) or 0, _rank(got, token_id) or 0]
    return min(ranks) >= len(expected) and abs(ranks[0] - ranks[1]) == 1

"""Ratios of our figures to those of each peer whose weights have the same width."""

from collections.abc import Mapping
from dataclasses import dataclass

from rayinfer.benchmark.peers.cases import FIGURES, LESS_IS_BETTER
from rayinfer.benchmark.peers.own import NAME as OWN
from rayinfer.benchmark.peers.results import Section


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """One of our modes beside one peer at one figure."""

    figure: str
    own_label: str
    own: float
    peer_label: str
    peer: float

    @property
    def better_by(self) -> float:
        """Above 1 where ours is better, for times too."""
        return self.peer / self.own if self.figure in LESS_IS_BETTER else self.own / self.peer


@dataclass(frozen=True, slots=True)
class _Entry:
    label: str
    weight_bits: int
    median: float

    @property
    def is_own(self) -> bool:
        return self.label.startswith(f"{OWN} ")


def ratios_of(sections: Mapping[str, Section]) -> list[Ratio]:
    """Compare every mode of ours, figure by figure, with every peer whose weights are as wide."""
    return [
        Ratio(figure=figure, own_label=own.label, own=own.median, peer_label=peer.label, peer=peer.median)
        for figure in FIGURES
        for entries in [_entries(sections, figure)]
        for own in entries
        for peer in entries
        if own.is_own and not peer.is_own and own.weight_bits == peer.weight_bits
    ]


def _entries(sections: Mapping[str, Section], figure: str) -> list[_Entry]:
    return [
        _Entry(label, outcome.weight_bits, median)
        for section in sections.values()
        for label, outcome in section.outcomes.items()
        if (median := outcome.median(figure)) is not None
    ]

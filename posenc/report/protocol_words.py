"""The words of each protocol in tables and in --explain, from its file in evaluation/protocols.

A stored record may name a protocol, or a kind of plant, that this posenc does not have. Then there are no
words of its own.

It also checks a protocol that a user names, as it knows those of posenc and those of records.
"""

from __future__ import annotations

from collections.abc import Sequence

from posenc.core.errors import UserError
from posenc.evaluation.protocols import find_protocol, protocol_names
from posenc.results.drafts import ALL_PROTOCOLS, protocols_of
from posenc.results.runs import Run

DOCUMENT = "document"


def check_protocol(name: str, runs: Sequence[Run]) -> None:
    """Raise UserError for a name that is neither a protocol of posenc nor in a record of the runs."""
    measured = protocols_of(runs)
    known = dict.fromkeys([*measured, *protocol_names(), ALL_PROTOCOLS])
    # A protocol that posenc knows and nobody measured has an error of its own, which says how to measure it.
    if name not in known:
        raise UserError("--protocol", name, "there is no such protocol", allowed=known)


def heading_of(protocol: str) -> str:
    """Return the heading of a protocol's section on the page: `Same targets, more text`."""
    if protocol not in protocol_names():
        return protocol
    title = find_protocol(protocol).title
    # `capitalize` would make the other letters small, those of a name such as RULER among them.
    return title[:1].upper() + title[1:]


def note_of(protocol: str) -> str | None:
    """Return the line that --full puts below a table; None without one."""
    return find_protocol(protocol).note if protocol in protocol_names() else None


def why_loss_changes(protocol: str) -> str:
    """Return what differs in a longer window: `the same targets see more text`."""
    if protocol not in protocol_names():
        return "the window is longer"
    return find_protocol(protocol).why_loss_changes


def sample_noun(protocol: str) -> str:
    """Return the noun of the text that targets are in: `document`, or `sequence` for random text."""
    return find_protocol(protocol).sample_noun if protocol in protocol_names() else DOCUMENT


def planted_noun(kind: str | None) -> str:
    """Return what recall finds, by the kind of plant: `planted values`. Old records do not say the kind."""
    from posenc.data.plants import PLANTS  # 0.1 s, which most tables need not wait for

    return PLANTS[kind].noun if kind in PLANTS else "planted values"


def protocol_meanings() -> list[tuple[str, str]]:
    """Return each protocol with what it measures, for --explain."""
    return [(name, find_protocol(name).explain) for name in protocol_names()]

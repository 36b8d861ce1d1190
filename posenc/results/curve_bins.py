"""Bins of curves as columns: what a row shows of a protocol that measures the loss by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posenc.results.measurements import Measurement, Member, rounded_multiple


def with_bins(members: Sequence[Member]) -> list[Member]:
    """Return members whose `by_multiple` holds the bins of their curves.

    Members of a protocol without curves stay as they are. A member with a note instead of a curve gets this
    note in the bins of all others.
    """
    has_curves = any(
        measurement.curve is not None for member in members for measurement in member.measurements
    )
    if not has_curves:
        return list(members)
    curves = [_MemberCurve.of(member) for member in members]
    windows: dict[float, int] = {}  # the last position of each bin, by multiple of T
    crop_lines: dict[Path, Measurement | None] = {}  # the bin that ends at T of each run as trained
    for curve in curves:
        for multiple, measurement in curve.bins.items():
            windows[multiple] = measurement.window
        if curve.member.extension is None:
            crop_lines[curve.member.run.path] = curve.bins.get(1.0)
    members_with_bins = []
    for curve in curves:
        bins = curve.bins
        if curve.longest.curve is None:
            bins = _in_every_bin(curve.longest, windows)
        crop_line = crop_lines.get(curve.member.run.path)
        members_with_bins.append(
            replace(curve.member, measurements=(curve.longest,), by_multiple=bins, crop_line=crop_line)
        )
    return members_with_bins


def _in_every_bin(note: Measurement, windows: Mapping[float, int]) -> dict[float, Measurement]:
    """Return a measurement without a curve once for each bin, so that every cell of its row has its note.

    `windows` has the last position of each bin, by multiple of T.
    """
    return {multiple: replace(note, multiple=multiple, window=window) for multiple, window in windows.items()}


@dataclass(frozen=True)
class _MemberCurve:
    """The measurement of a member at its longest window, and the bins of its curve, if it has one."""

    member: Member
    longest: Measurement
    bins: dict[float, Measurement]  # by multiple of T

    @classmethod
    def of(cls, member: Member) -> _MemberCurve:
        longest = member.by_multiple[max(member.by_multiple)]
        return cls(member, longest, _bins(longest))


def _bins(measurement: Measurement) -> dict[float, Measurement]:
    """Return the bins of a curve by multiple of T, each with its rise; none without a curve."""
    curve = measurement.curve
    if curve is None:
        return {}
    bins = {}
    for index, edge in enumerate(curve["edges"][1:]):
        # An edge is where the next bin starts, see `Curve`.
        last_position = edge - 1
        interval = curve["rise_ci95"][index]
        multiple = rounded_multiple(last_position / measurement.train_length)
        bins[multiple] = replace(
            measurement,
            multiple=multiple,
            window=last_position,
            targets=curve["targets"][index],
            nats=curve["nats"][index],
            bpb=None,
            sums=None,
            rise=curve["rise"][index],
            rise_ci95=None if interval is None else (interval[0], interval[1]),
            curve=None,
        )
    return bins

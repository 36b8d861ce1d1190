"""What a comparison was measured on and with: the values that its rows share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from posenc.results.columns import single
from posenc.results.load import Run
from posenc.results.mixing import tokens_trained
from posenc.results.records import METRICS, UNIT, Metric
from posenc.results.reference import reference
from posenc.results.rows import CODE, Group
from posenc.results.selection import Selected
from posenc.results.settings import as_text, differing, of_options
from posenc.results.verdicts import COLLAPSED, CONFIDENCE, SAME


def header_of(
    selected: Sequence[Selected],
    groups: Sequence[Group],
    protocol: str,
    metric: Metric,
    mixed: Sequence[dict[str, str]],
) -> dict[str, Any]:
    """The header; a value is null where the runs differ in it (`mixed` says how)."""

    def shared(value: Callable[[Selected], Any]) -> Any:
        found = {as_text(value(one)): value(one) for one in selected}
        return next(iter(found.values())) if len(found) == 1 else None

    units = single({record["unit"] for one in selected for record in one.records})
    unit = (units or UNIT) if metric == "nats" else METRICS[metric]
    totals = [n for one in selected if isinstance(n := parameters_of(one.run), int)]
    scored = [record for one in selected for record in one.records if record["targets"]]
    labelled = {group.encoding for group in groups}
    others = differing([g.settings for g in groups if g.settings]) if len(labelled) > 1 else []
    others = [key for key in others if not (key.startswith("encoding.") or of_options(key) or key == CODE)]
    return {
        "protocol": protocol,
        "metric": metric,
        "unit": unit,
        "corpus": shared(lambda one: one.records[0]["corpus"]),
        "fingerprint": shared(lambda one: one.records[0]["fingerprint"]),
        "split": shared(lambda one: one.records[0]["split"]),
        "stride": shared(lambda one: one.records[0]["stride"]),
        "tokenizer": shared(lambda one: (one.run.facts or {}).get("tokenizer")),
        "context_length": shared(lambda one: (one.run.facts or {}).get("context_length")),
        "model": shared(lambda one: (one.run.facts or {}).get("model")),
        "parameters": _ends(totals),
        "tokens": shared(tokens_trained),
        "seeds": sorted({seed for group in groups for seed in group.seeds}),
        "documents": _ends([record["documents"] for record in scored]),
        "targets": _ends([record["targets"] for record in scored]),
        "beyond": {group.label: group.beyond for group in groups if group.beyond},
        "mixed": {key: sorted({row[key] for row in mixed}) for key in (mixed[0] if mixed else {})},
        "also_differs": {
            k: sorted({g.settings.get(k, "unset") for g in groups if g.settings}) for k in others
        },
        "reference": reference(selected, metric),
        "margins": {"unit": METRICS["bpb"], "same": SAME, "collapsed": COLLAPSED, "confidence": CONFIDENCE},
        "left_out": sum(one.left_out for one in selected),
        "facet": None,
        "baseline": None,
    }


def parameters_of(run: Run) -> object:
    """The number of parameters, where it is known."""
    return (run.facts or {}).get("parameters", {}).get("total")


def _ends(values: Sequence[int]) -> list[int] | None:
    """The fewest and the most."""
    return [min(values), max(values)] if values else None

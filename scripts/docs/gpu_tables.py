"""Tables of a visit to a GPU, from the JSON of scripts/check_gpu.py; it prints them, and the pages show them.

A table function takes the JSON's items by key and returns heads and rows of text. What was not measured is a
dash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]
Items = dict[str, Json]
NOT_MEASURED = "-"


class TextTable(NamedTuple):
    """Heads and rows of a table; the first column holds words."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def _value(items: Items, key: str, name: str, form: str, factor: float = 1.0) -> str:
    """Return a number of an item as text."""
    value = items.get(key, {}).get(name)
    return NOT_MEASURED if value is None else format(factor * value, form)


def _part_names(items: Items, *prefixes: str) -> list[str]:
    """Return what stands between a prefix and the next slash in the keys, each once."""
    names: dict[str, None] = {}
    for key in items:
        for prefix in prefixes:
            if key.startswith(prefix):
                names[key.removeprefix(prefix).partition("/")[0]] = None
    return list(names)


def steps(items: Items, model: str) -> TextTable:
    """Training steps of the encodings, compiled and not; `over` is the time over that of the base."""
    heads = (
        *("encoding", "compiled, ms", "over", "tokens/s", "MFU, %", "peak, GiB", "first step, s"),
        *("not compiled, ms", "over", "MFU, %", "peak, GiB"),
    )
    rows = []
    for name in _part_names(items, f"times/{model}/"):
        compiled = f"times/{model}/{name}/compiled"
        plain = f"times/{model}/{name}/plain"
        rows.append(
            (
                name,
                _value(items, compiled, "ms", ".1f"),
                _value(items, compiled, "over_base", ".2f"),
                _value(items, compiled, "tokens_per_second", ",.0f"),
                _value(items, compiled, "mfu", ".1f", 100),
                _value(items, compiled, "peak_gib", ".1f"),
                _value(items, f"warm-up/{model}/{name}", "training", ".0f"),
                _value(items, plain, "ms", ".1f"),
                _value(items, plain, "over_base", ".2f"),
                _value(items, plain, "mfu", ".1f", 100),
                _value(items, plain, "peak_gib", ".1f"),
            )
        )
    return TextTable(heads, rows)


def peers(items: Items) -> TextTable:
    """Steps and forward passes of other packages' models over posenc's, compiled beside compiled."""
    heads = (
        "over posenc's",
        "step, compiled",
        "not compiled",
        "forward, compiled",
        "not compiled",
        "peak, GiB",
    )
    rows = []
    for name in _part_names(items, "peers/"):
        cells = [
            _value(items, f"peers/{name}/{work}/{form}", "over_base", ".2f")
            for work in ("training", "forward")
            for form in ("compiled", "plain")
        ]
        rows.append((name, *cells, _value(items, f"peers/{name}/training/compiled", "peak_gib", ".1f")))
    return TextTable(heads, rows)


def evaluation(items: Items) -> TextTable:
    """Tokens a second of an evaluation, and its time over that of the base, by window."""
    names = _part_names(items, "evaluation/")
    windows = sorted({key.rpartition("/")[2] for key in items if key.startswith("evaluation/")})
    heads = ["tokens/s"]
    for window in windows:
        heads += [f"at {window}", "over"]
    rows = []
    for name in names:
        cells = [name]
        for window in windows:
            key = f"evaluation/{name}/{window}"
            cells.append(_value(items, key, "tokens_per_second", ",.0f"))
            cells.append(_value(items, key, "over_base", ".2f"))
        rows.append(cells)
    return TextTable(heads, rows)


def nanos(items: Items) -> TextTable:
    """Tokens a second of small models that train at once in processes of their own."""
    heads = ("nano", "one alone", "all at once", "processes", "slowest of them")
    rows = []
    for mode, mode_text in (("plain", ""), ("mps", ", MPS")):
        for kind, kind_text in (("plain", "step by step"), ("cuda_graph", "CUDA graph")):
            result = items.get(f"nanos/{mode}", {}).get(kind, {})
            if "all" not in result:
                continue
            speeds = {"one": result.get("one", {}), "all": result.get("all", {})}
            rows.append(
                (
                    kind_text + mode_text,
                    _value(speeds, "one", "tokens_per_second", ",.0f"),
                    _value(speeds, "all", "tokens_per_second", ",.0f"),
                    _value(speeds, "all", "processes", ",.0f"),
                    _value(speeds, "all", "slowest", ",.0f"),
                )
            )
    return TextTable(heads, rows)


def long_keys(items: Items) -> TextTable:
    """Largest relative difference of PyTorch's fused attention from blocks in float32."""
    heads = ("precision", "keys", "last queries, mask", "all queries, causal")
    rows = []
    for key in items:
        if key.startswith("long_keys/"):
            _, precision, keys = key.split("/")
            cells = [_value(items, key, name, ".1e") for name in ("masked", "causal")]
            rows.append((precision, keys, *cells))
    return TextTable(heads, rows)


def resume(items: Items) -> TextTable:
    """Differences of a run that was stopped and continued from one that was not."""
    heads = ("stopped by SIGTERM", "steps", "stopped after", "bit for bit", "largest difference of a weight")
    rows = []
    for form in _part_names(items, "resume/"):
        result = items[f"resume/{form}"]
        exact = result.get("is_bit_exact")
        rows.append(
            (
                form,
                _value(items, f"resume/{form}", "steps", ",.0f"),
                _value(items, f"resume/{form}", "stopped_step", ",.0f"),
                NOT_MEASURED if exact is None else {True: "yes", False: "no"}[exact],
                _value(items, f"resume/{form}", "largest_difference", ".1e"),
            )
        )
    return TextTable(heads, rows)


def numbers(items: Items) -> TextTable:
    """Checks of all encodings by precision: how many, how many are off, and the largest distance."""
    heads = ("numbers", "encodings", "checks", "by FlexAttention", "off", "largest distance", "of")
    rows = []
    for prefix, form in (("numbers/", "not compiled"), ("numbers-compiled/", "compiled")):
        results = {key.removeprefix(prefix): item for key, item in items.items() if key.startswith(prefix)}
        for precision in ("fp32", "bf16"):
            checks = list(_checks(results, precision))
            if not checks:
                continue
            by_flex = sum(bool(check["flex_calls"]) for check in checks)
            finite = [check for check in checks if check["off"] is not None]
            worst = max(finite, key=lambda check: float(check["off"]), default=None)
            rows.append(
                (
                    f"{precision}, {form}",
                    str(len({check["encoding"] for check in checks})),
                    str(len(checks)),
                    NOT_MEASURED if form == "compiled" else str(by_flex),
                    str(sum(check["is_bad"] for check in checks)),
                    NOT_MEASURED if worst is None else f"{worst['off']:.1e}",
                    NOT_MEASURED if worst is None else f"{worst['encoding']}, {worst['worst']}",
                )
            )
    return TextTable(heads, rows)


def _checks(results: Items, precision: str) -> Iterable[Json]:
    """Yield the checks in a precision, with the encoding's name."""
    for name, result in results.items():
        for check in result.get("checks", ()):
            if check["precision"] == precision:
                yield {**check, "encoding": name}


TABLES: dict[str, Callable[[Items], TextTable]] = {
    "numbers": numbers,
    "small": lambda items: steps(items, "small"),
    "base": lambda items: steps(items, "base"),
    "peers": peers,
    "evaluation": evaluation,
    "nanos": nanos,
    "long_keys": long_keys,
    "resume": resume,
}

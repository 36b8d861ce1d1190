"""`posenc encodings`: the catalogue, from the classes themselves."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from posenc.config.overrides import value_text
from posenc.core.signature import parameters_of
from posenc.encodings.registry import default_parameters, encoding_class, list_encodings

# Where an encoding acts, in the order of a forward pass, and in words.
PLACES = {
    "nothing": "nothing: order comes from the causal mask",
    "embed": "embed: a vector for each position, met with the residual stream",
    "rotate": "rotate: queries and keys made to depend on their positions",
    "bias": "bias: added to the scores, by distance or positions alone",
    "scores": "scores: what is added depends on queries, keys or the text",
    "weights": "weights: another normalisation than the softmax",
    "mask": "mask: which keys are seen",
    "several": "several: several places, or made of several encodings",
}


def entry(name: str, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return what is known of one encoding, as plain JSON. Raises UserError for an unknown name."""
    cls = encoding_class(name, plugins)
    return {
        "name": name,
        "acts_on": cls.acts_on,
        "formula": cls.formula,
        "learned_parameters": cls.learned,
        "parameters": default_parameters(name),
        "without_default": sorted(set(parameters_of(cls)) - set(default_parameters(name))),
        "past_training": cls.past_training,
        "paper": cls.paper,
        "revision": cls.revision,
        "prefix_stable": cls.prefix_stable,
        "relative": cls.relative,
        "decouples": cls.decouples,
        "refuses": dict(cls.refuses),
        "description": (sys.modules[cls.__module__].__doc__ or "").strip(),
    }


def print_catalogue(name: str | None, *, as_json: bool, plugins: Sequence[str] = ()) -> None:
    """Print all encodings as a table grouped by where they act, or one of them in full."""
    entries = [entry(one, plugins) for one in ([name] if name else list_encodings(plugins))]
    if as_json:
        print(json.dumps(entries[0] if name else entries, indent=2, ensure_ascii=False))
    elif name:
        _print_one(entries[0])
    else:
        _print_all(entries)


def _print_all(entries: Sequence[dict[str, Any]]) -> None:
    console = Console()
    names = max(len(one["name"]) for one in entries)
    for place in [*PLACES, *sorted({one["acts_on"] for one in entries} - set(PLACES))]:
        group = [one for one in entries if one["acts_on"] == place]
        if not group:
            continue
        console.print(f"\n[bold]{escape(PLACES.get(place, place))}[/bold]")
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(min_width=names)
        table.add_column()
        for one in group:
            table.add_row(one["name"], escape(one["formula"]))
            table.add_row("", f"[dim]past T: {escape(one['past_training'])}[/dim]")
        console.print(Padding(table, (0, 0, 0, 2)))
    console.print(
        "\nposenc encodings NAME: paper, parameters, departures. posenc show encoding=NAME: pictures."
        "\nWith any: positions=randomized|offset|pose; attention.window=W, attention.scale=logn|ssmax."
    )


def _print_one(one: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    settings = [f"encoding.{key}={value_text(value)}" for key, value in one["parameters"].items()]
    settings += [f"encoding.{key}: needed, without a default" for key in one["without_default"]]
    learned = {None: "not declared", "0": "none"}.get(one["learned_parameters"])
    legend = "(T training length, d model width, D head width, H heads, L layers)"
    sections = {
        "What it is": one["description"].splitlines(),
        "Paper": [one["paper"]],
        "Settings and defaults": settings or ["none"],
        "Learned parameters": [learned or f"{one['learned_parameters']}   {legend}"],
        "Past the training length T": [one["past_training"]],
        "Refused with it": [f"{key}: {why}" for key, why in one["refuses"].items()],
    }
    console.print(Text(f"{one['name']}  (acts on: {one['acts_on']})", style="bold"))
    for title, lines in sections.items():
        if lines:
            console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            console.print(Padding(line, (0, 0, 0, 2)) if line else "")

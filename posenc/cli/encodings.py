"""Run `posenc encodings`: print all encodings by where they act, or one of them in full."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from posenc.config.overrides import value_text
from posenc.core.console import say, terminal_width
from posenc.core.errors import UserError, visible
from posenc.encodings.catalogue import ACTS_ON, EncodingEntry, describe_encoding
from posenc.encodings.registry import FILE, list_encodings

SYMBOLS = "(T training length, d model width, D head width, H heads, L layers)"
FOOTER = """
posenc encodings NAME: paper, parameters, departures. posenc show encoding=NAME: pictures.
With any: positions=randomized|offset|pose|cream; attention.window=W, attention.scale=logn|ssmax,
attention.normalizer=sink|off_by_one|entmax|asentmax, attention.gate=head|element,
attention.key_offset=true, attention.token_shift=true, attention.output_norm=true."""


def print_encodings(name: str | None, *, as_json: bool, plugins: Sequence[str] = ()) -> None:
    """Print all encodings as a table, or one of them, by its name or its file, in full. Raises UserError."""
    _check_plugins(plugins)
    if name is not None:
        entry = describe_encoding(name, plugins)
        if as_json:
            print(json.dumps(asdict(entry), indent=2, ensure_ascii=False))
        else:
            _print_entry(entry)
        # Who names a file is writing an encoding, and the laws are the next step.
        if FILE.fullmatch(name):
            say(f"hold it to the laws: posenc check encoding={visible(name)}")
        return
    entries: list[EncodingEntry] = []
    for encoding in list_encodings(plugins):
        try:
            entries.append(describe_encoding(encoding, plugins))
        except UserError as error:
            # Of an installed package: one that is broken must not hide all others.
            say(f"left out: {error.text()}")
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2, ensure_ascii=False))
    else:
        _print_table(entries)


def _check_plugins(plugins: Sequence[str]) -> None:
    """Import the plug-ins. Raises UserError, which names the option `--plugin`."""
    try:
        list_encodings(plugins)
    except UserError as error:
        # `plugins` is the setting of other commands.
        hint = error.hint.removeprefix(f"plugins=[{error.value}]: ")
        raise UserError("--plugin", error.value, error.problem, hint=hint) from error


def _print_table(entries: Sequence[EncodingEntry]) -> None:
    """Print formula and behaviour past T of each encoding, below a heading for where it acts."""
    console = Console()
    name_width = max(len(entry.name) for entry in entries)
    other_places = {entry.acts_on for entry in entries} - set(ACTS_ON)  # named by plug-ins
    for place in [*ACTS_ON, *sorted(other_places)]:
        # The table goes by place: where an encoding acts says more than the alphabet.
        group = [entry for entry in entries if entry.acts_on == place]
        if not group:
            continue
        console.print(f"\n[bold]{escape(ACTS_ON.get(place, place))}[/bold]")
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(min_width=name_width)
        table.add_column()
        for entry in group:
            table.add_row(entry.name, escape(entry.formula))
            table.add_row("", f"[dim]past T: {escape(entry.past_training)}[/dim]")
        console.print(Padding(table, (0, 0, 0, 2)))
    console.print(FOOTER)


def _print_entry(entry: EncodingEntry) -> None:
    """Print everything about an encoding, section by section."""
    console = Console(highlight=False, markup=False, emoji=False)
    width = terminal_width()
    console.print(Text(f"{entry.name}  (acts on: {entry.acts_on})", style="bold"))
    for title, lines in _sections(entry).items():
        if lines:
            console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            text = line.strip()
            margin = "  " + line[: len(line) - len(line.lstrip())]
            # Lines of a docstring keep their margin: formulas stand below one another.
            print(textwrap.fill(text, width, initial_indent=margin, subsequent_indent=margin))


def _sections(entry: EncodingEntry) -> dict[str, list[str]]:
    """Return the lines of each section by its title."""
    settings = [f"encoding.{key}={value_text(value)}" for key, value in entry.parameters.items()]
    settings += [f"encoding.{key}: needed, without a default" for key in entry.without_default]
    return {
        "What it is": entry.description.splitlines(),
        "Paper": [entry.paper],
        "Settings and defaults": settings or ["none"],
        "Learned parameters": [_learned(entry.learned_parameters)],
        "Past the training length T": [entry.past_training],
        "Refused with it": [f"{key}: {reason}" for key, reason in entry.refuses.items()],
    }


def _learned(formula: str | None) -> str:
    """Return the number of learned parameters, as a formula."""
    if formula is None:
        return "not declared"
    if formula == "0":
        return "none"
    return f"{formula}   {SYMBOLS}"

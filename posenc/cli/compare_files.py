"""Write the files of `posenc compare`: pictures, pages and tables, each as its ending says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posenc.core.atomic_files import write_bytes_atomic, write_text_atomic
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import output_file
from posenc.report.charts.names import OWN_CAPTION
from posenc.report.figure import PICTURE_FORMATS, Figure, check_kind, figure_of
from posenc.report.formats import render
from posenc.report.papers import replaced_characters
from posenc.report.parts import chart_of_protocol
from posenc.results.comparison import Comparison

if TYPE_CHECKING:
    from posenc.report.drawing import Drawing

PICTURES = {f".{format}": format for format in PICTURE_FORMATS}
PAGES = {".html": "html", ".htm": "html"}
TABLES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json", ".txt": "table"}


@dataclass(frozen=True)
class FileOptions:
    """The options about files as they were typed."""

    out: Sequence[str] = ()
    plot: str | None = None
    html: str | None = None
    plot_kind: str | None = None
    size: str | None = None
    caption: str | None = None
    legend: str | None = None  # on or off
    font: str | None = None


@dataclass(frozen=True)
class OutputFile:
    """A file to write."""

    name: str  # as it was typed
    path: Path  # with links followed
    format: str  # a value of PICTURES, PAGES or TABLES


@dataclass(frozen=True)
class Outputs:
    """The files to write, after all checks."""

    files: Sequence[OutputFile]
    plot_kind: str
    figure: Figure

    @property
    def pictures(self) -> list[OutputFile]:
        """Return those of the files that are pictures."""
        return [file for file in self.files if file.format in PICTURE_FORMATS]


def check_files(options: FileOptions, protocol: str) -> Outputs:
    """Return the files to write. Raises UserError for what cannot be written."""
    files = []
    if options.plot is not None:
        # `--plot` and `--html` are older than `--out`, and each takes its own endings.
        files.append(_output_file("--plot", options.plot, PICTURES))
    if options.html is not None:
        files.append(_output_file("--html", options.html, PAGES))
    files += [_output_file("--out", name, {**PICTURES, **PAGES, **TABLES}) for name in options.out]
    plot_kind = options.plot_kind or chart_of_protocol(protocol)
    # Everything is checked before runs are read, which may take seconds.
    figure = figure_of(options.size, options.caption, options.font, has_legend=options.legend != "off")
    outputs = Outputs(files, plot_kind, figure)
    if outputs.pictures:
        check_kind(plot_kind)
    else:
        _refuse_options_of_pictures(options)
    return outputs


def _output_file(option: str, name: str, format_of_ending: Mapping[str, str]) -> OutputFile:
    format = format_of_ending.get(Path(name).suffix.lower())
    if format is None:
        allowed = ", ".join(format_of_ending)
        raise UserError(option, name, "its ending names the format", allowed=allowed)
    # Links are followed now: files are written under another name and renamed, which would replace a link.
    return OutputFile(name, output_file(option, name), format)


def _refuse_options_of_pictures(options: FileOptions) -> None:
    """Raise UserError for an option that only a picture has."""
    for name in ("plot_kind", "size", "caption", "legend", "font"):
        value = getattr(options, name)
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            # `--caption` without a text has this value, which nobody typed.
            is_own_caption = name == "caption" and value == OWN_CAPTION
            typed = None if is_own_caption else value
            raise UserError(option, typed, "there is no picture to make", hint="--plot FILE")


def say_what_is_replaced(text: str, format: str) -> None:
    """Say which characters of a LaTeX text could not be written."""
    characters = replaced_characters(text) if format == "latex" else ""
    if characters:
        number = f"[U+{ord(characters[0]):04X}]"
        say(f"LaTeX has no command for {' '.join(characters)}: its number is there, as {number}")


def draw(outputs: Outputs, comparisons: Sequence[Comparison]) -> Drawing | None:
    """Draw the pictures, which are one drawing in several formats; None without any.

    Raises UserError if the runs have no numbers for it.
    """
    if not outputs.pictures:
        return None
    from posenc.report.drawing import draw_figure  # with altair: only where a picture is wanted

    return draw_figure(outputs.plot_kind, comparisons, outputs.figure)


def write_files(
    outputs: Outputs,
    comparisons: Sequence[Comparison],
    drawing: Drawing | None,
    make_page: Callable[[], str],
    *,
    full: bool,
    with_short_lengths: bool,
) -> None:
    """Write pictures and tables of comparisons, and the page that `make_page` returns. Raises UserError.

    `drawing` is what `draw` returned.
    """
    for file in outputs.files:
        if file.format == "html":
            write_text_atomic(file.path, make_page())
        elif drawing is not None and file.format in PICTURE_FORMATS:
            write_bytes_atomic(file.path, drawing.data(file.format))
        else:
            text = render(comparisons, file.format, full=full, with_short_lengths=with_short_lengths)
            write_text_atomic(file.path, text)
            say_what_is_replaced(text, file.format)
        say(f"wrote {file.name}")
    # A caption belongs to the text around a picture, so it is printed to be copied.
    if drawing is not None and outputs.figure.caption is None:
        say(f"caption: {visible(drawing.caption)}")

"""Define the options of `posenc compare`, with their help: which runs, which table, which files."""

from __future__ import annotations

from typing import Annotated

from posenc.cli.options import OptionalText, OptionalTexts, choice, option, where_option
from posenc.config.completion import complete_names, complete_table, table_names
from posenc.report.charts.names import plots

# --- which runs, and what is compared of them

Where = Annotated[OptionalTexts, where_option("Only these runs: encoding=rope,al*  seed=0  train.lr!=0.002")]
Metric = Annotated[str, choice("nats", "bpb", "ppl", help="nats, bpb (bits per byte) or ppl.")]
Rows = Annotated[OptionalTexts, option("Only these rows, in this order: rope,alibi*")]
Columns = Annotated[OptionalTexts, option("Only these lengths: 1x,8x")]
Sort = Annotated[OptionalText, option("By name, 8x (the loss there), change or change@4x; -8x: falling.")]
Baseline = Annotated[
    OptionalText, option("Show differences to this row instead of to the loss at T.", metavar="ROW")
]
AllowMixed = Annotated[bool, option("Put runs of different settings into one table.", "--allow-mixed")]
RecallLevel = Annotated[
    float | None, option("Per cent recalled within T that a row needs to be ranked on recall.")
]
Against = Annotated[
    OptionalText,
    option(
        f"Compare with a paper's table: {', '.join(table_names())}.",
        metavar="TABLE",
        complete=complete_table,
    ),
]

# --- how the table is printed

Format = Annotated[str, choice("table", "markdown", "csv", "latex", "json")]
Full = Annotated[
    bool, option("Every number with its interval, seeds, notes; in md and tex lengths below T.", "--full")
]
Explain = Annotated[bool, option("How to read the table.", "--explain")]
Labels = Annotated[
    OptionalTexts, option("Other names of rows: rope=RoPE,sqrt_bias=Ours.", metavar="NAME=TEXT")
]

# --- files, and what is in a picture

Out = Annotated[
    OptionalTexts,
    option(
        "Write a file as its ending says (repeatable): .png .svg .pdf .tex .md .csv .json .txt .html",
        metavar="FILE",
    ),
]
Html = Annotated[OptionalText, option("Write one page with charts and tables.", metavar="FILE")]
Plot = Annotated[OptionalText, option("Write a picture: .png, .svg or .pdf.", metavar="FILE")]
PlotKind = Annotated[
    OptionalText,
    option(
        f"{'; '.join(f'{kind}: {meaning}' for kind, meaning in plots().items())}.",
        complete=complete_names(*plots()),
    ),
]
Size = Annotated[
    OptionalText, option("Of a picture, in inches: 3.25x2.4, or its width alone: 5.5.", metavar="WxH")
]
Caption = Annotated[
    OptionalText,
    option("Put a text below a picture; without TEXT what posenc says about it.", metavar="[TEXT]"),
]
Legend = Annotated[OptionalText, choice("on", "off", help="Of a picture: on or off.")]
Font = Annotated[OptionalText, option('Of a picture: a family that is installed, such as "Times New Roman".')]

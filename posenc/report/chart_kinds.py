"""Names that the options of pictures take. A file of its own: the command line reads it and draws nothing."""

from __future__ import annotations

PLOTS = {
    "context": "loss against context",
    "change": "change against the loss at T, against context",
    "heatmap": "change against T by encoding and context",
    "recall": "share of planted values found, by window and distance",
    "exact": "answers of a task that are wholly right, by window",
    "tasks": "answers wholly right in the longest window, by encoding and task",
    "needle": "share of facts found, by window and depth in the text",
    "use": "harm and use: recall against the change of the loss, in the longest window",
    "memory": "how far next-token distributions move when text farther back than a window comes in",
    "why": "why rows fail: entropy, first token, output variance of attention and far positions by length",
}
DEFAULT_PLOT = "context"
OWN_CAPTION = "auto"  # stands for what posenc says about a picture

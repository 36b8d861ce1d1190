"""How to read the page, in words."""

from __future__ import annotations

from posenc.report.page.markup import Html, el, join

TEXTS = (
    "Every model was trained with contexts of T tokens, and each length is a multiple of T. With "
    "fixed-target the same target tokens are scored at every length and for every row; only the text before "
    "them changes. The loss at 1x is the crop line: what one gets who cuts the context to T. A change "
    "below zero means that longer context helps, zero that it does no harm, above zero that it harms. "
    "A lower loss is better.",
    "The number behind ± and the band in a chart say how far seeds differ (their standard deviation); "
    "with one seed they are 95% intervals over documents, which say nothing of other seeds. The words "
    "same, better, worse and collapsed are given only where an interval clears its margin; unclear means "
    "that it does not. The notes under each table say what its marks mean.",
    "In the charts, point at a line or use the arrow keys for its numbers; the buttons above them hide "
    "rows; detail shows the range near the lowest loss. Tables sort by every column: the first "
    "press puts the smallest first. A row without a number keeps its reason.",
)


def how_to_read() -> Html:
    """Paragraphs."""
    return join([el("p", text) for text in TEXTS])

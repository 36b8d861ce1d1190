"""The JavaScript of the charts: Vega, Vega-Lite and Vega-Embed, out of the package vl-convert-python.

Chosen over Bokeh (1.27 MB against 0.90 MB): it draws SVG, so that lines take their colours from the page's
style sheet in light, dark and print, and its interpreter of expressions needs no `eval`.
"""

from __future__ import annotations

import functools

from posenc.core.errors import RunError

NOTICE = (
    "Charts: Vega, Vega-Lite and Vega-Embed, copyright University of Washington Interactive Data Lab and "
    "contributors, BSD 3-Clause licence."
)


@functools.cache
def chart_library() -> str:
    """A script that defines `vegaEmbed`; a second, the first time. Raises RunError without the package."""
    try:
        import vl_convert
    except ImportError as error:
        hint = "pip install vl-convert-python"
        raise RunError(f"the page's charts need vl-convert-python: {error}", hint=hint) from error
    script: str = vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;")
    if "</script" in script.lower() or "<!--" in script:
        raise RunError("the chart library cannot stand in a page: it holds the end of a script element")
    return script

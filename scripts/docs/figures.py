"""A chart of Vega-Lite as a PNG, with the looks of `posenc compare --plot`."""

from __future__ import annotations

from posenc.report.vega import PAGE_CONFIG, SCHEMA, Spec, draw_svg, image_bytes, on_paper


def png_of(spec: Spec) -> bytes:
    """Return the picture of a chart; fonts and colours are those of posenc's own charts."""
    complete = {"$schema": SCHEMA, "config": PAGE_CONFIG, **spec}
    return image_bytes(draw_svg(on_paper(complete, {})), "png")

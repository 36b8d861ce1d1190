"""A chart of Vega-Lite as a PNG, with the looks of `posenc compare --plot`."""

from __future__ import annotations

from typing import Any

import vl_convert

from posenc.report.charts import image, on_paper, template

Spec = dict[str, Any]  # a part of a Vega-Lite specification


def png_of(spec: Spec) -> bytes:
    """Return the picture of a chart; fonts and colours are those of posenc's own charts."""
    base = template("lines")
    complete = {"$schema": base["$schema"], "config": base["config"], **spec}
    svg = vl_convert.vegalite_to_svg(on_paper(complete, {}), allowed_base_urls=[])
    return image(svg, "png")

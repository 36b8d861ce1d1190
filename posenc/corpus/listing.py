"""The corpora that can be chosen: what `conf/data` holds."""

from __future__ import annotations

from pathlib import Path

import yaml


def list_corpora(conf_dir: Path) -> list[dict[str, str]]:
    """Name, source and description (the first comment line) of every YAML in `conf_dir`/data, by name."""
    rows = []
    for path in sorted((conf_dir / "data").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        first = text.split("\n", 1)[0]
        settings = yaml.safe_load(text)
        rows.append(
            {
                "name": path.stem,
                "source": str(settings["source"]),
                "description": first.removeprefix("#").strip() if first.startswith("#") else "",
            }
        )
    return rows

"""The config groups of `tracking` as they are shipped, and which trackers are installed here."""

from __future__ import annotations

import importlib.util
from typing import Any

import yaml

from posenc.core.paths import conf_dir

EXTRAS = ("tensorboard", "trackio")


def shipped(name: str) -> dict[str, Any]:
    """A config group; the settings of several trackers stand below their names, as Hydra puts them."""
    loaded: dict[str, Any] = yaml.safe_load((conf_dir() / "tracking" / f"{name}.yaml").read_text())
    below = [one.partition("@")[0] for one in loaded.pop("defaults", []) if "@" in one]
    return {**{one: shipped(one) for one in below}, **loaded}


def installed() -> list[str]:
    """The trackers of extras that are there."""
    return [name for name in EXTRAS if importlib.util.find_spec(name) is not None]

"""Protocols and `eval` settings as the tests take them."""

import yaml

from posenc.core.paths import conf_dir
from posenc.evaluation.protocols import find_protocol, protocol_names
from posenc.settings.tree import EvalSettings

TEXT_PROTOCOLS = tuple(name for name in protocol_names() if not find_protocol(name).of_tasks)
RECALL = {"distances": [4], "pairs": [1], "windows": 4}
NEEDLE = {"depths": [0.5], "keys": [1], "values": 1, "queries": 1, "windows": 4}
MEMORY = {"shorter": [4, 8, 16]}
RULER = {"tasks": ["niah_multikey_3"], "samples": 2, "essays": None}
SETTINGS = {
    "target_fraction": 0.25,
    "stride": None,
    "key_tokens": None,
    "recall": RECALL,
    "needle": NEEDLE,
    "memory": MEMORY,
    "ruler": RULER,
}


def protocol_of(name, **changes):
    """The protocol of a name; `changes` may hold settings of other protocols, too."""
    protocol = find_protocol(name)
    settings = SETTINGS | changes
    picked = {key: settings[key] for key in protocol.Settings.model_fields if key in settings}
    return protocol(protocol.Settings.model_validate(picked))


def default_settings(**changes):
    """The `eval` group as its YAML has it, but for some values."""
    plain = yaml.safe_load((conf_dir() / "eval" / "default.yaml").read_text(encoding="utf-8"))
    return EvalSettings.model_validate(plain | changes)

"""Protocols with the settings of the tests."""

from posenc.evaluation.protocols import find_protocol

RECALL = {"distances": [4], "pairs": [1], "windows": 4}
SETTINGS = {"target_fraction": 0.25, "stride": None, "key_tokens": None, "recall": RECALL}


def protocol_of(name, **changes):
    """The protocol of a name; `changes` may hold settings of other protocols, too."""
    protocol = find_protocol(name)
    settings = SETTINGS | changes
    picked = {key: settings[key] for key in protocol.Settings.model_fields}
    return protocol(protocol.Settings.model_validate(picked))

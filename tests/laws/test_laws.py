"""Every encoding keeps the laws, alone and with options."""

from functools import partial

import pytest
from subjects import ATTENTION, named, subject, verdict_of

from posenc.encodings.registry import own_encodings
from posenc.laws import LAWS, judge
from posenc.running.law_check import SHORT

slow = partial(pytest.param, marks=pytest.mark.slow)
CHOSEN = [slow(name) if name == "sum" else name for name in own_encodings()]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", CHOSEN)
def test_holds(name, law):
    verdict = verdict_of(name, law)
    assert verdict.status != "fail", verdict
    assert verdict.figure or verdict.reason


@pytest.mark.parametrize("name", CHOSEN)
def test_only_what_is_declared_silences_a_law(name):
    """So that no law falls silent by itself."""
    declared = named(name).declared
    speaks = {"shift": declared.relative, "penalty": declared.penalty, "prefix": declared.prefix_stable}
    silent = {law for law in LAWS if verdict_of(name, law).status == "n/a"}
    assert silent == {law for law, declares in speaks.items() if not declares}


# encoding, parameters, other settings; what no other default test says is not slow
MLA = {**ATTENTION, "name": "mla", "kv_rank": None, "q_rank": None, "rope_dim": None}
VARIANTS = [
    ("learned", {"beyond": "truncate"}, {}),
    ("rope", {}, {"positions": {"name": "randomized", "max": None, "dense": False}}),
    ("rope", {}, {"attention": MLA}),
    slow("grape", {"additive": "gated", "rotation": True}, {}),
    slow("learned", {"beyond": "refuse"}, {}),
    slow("rope", {}, {"positions": {"name": "randomized", "max": None, "dense": True}}),
    slow("rope", {}, {"positions": {"name": "offset", "max": None}}),
    slow("rope", {}, {"attention": {**ATTENTION, "scale": "ssmax"}}),
    slow("path", {"forget": True}, {}),
    slow("grape", {"additive": "forget"}, {}),
    slow("pattern", {"period": [0, 1], "windows": [16, None], "scales": ["none", "floor"]}, {}),
]


@pytest.mark.parametrize("name, params, settings", VARIANTS, ids=str)
def test_hold_of_a_variant(name, params, settings):
    variant = subject({**named(name).settings, "name": name, **params}, **settings)
    verdicts = {law: judge(law, variant) for law in LAWS}
    assert not {law: verdict for law, verdict in verdicts.items() if verdict.status == "fail"}
    if params.get("beyond") in ("truncate", "refuse"):
        assert variant.longest() == SHORT
        assert "no number past T=32" in verdicts["prefix"].reason

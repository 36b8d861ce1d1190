"""Every encoding keeps the laws, alone and with options."""

from __future__ import annotations

import json
from typing import Any

import pytest
from subjects import ATTENTION, SETTINGS, named, verdict_of

from posenc.cli.check import SHORT, subject_of
from posenc.core.paths import conf_dir
from posenc.laws import LAWS, judge

NAMES = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", NAMES)
def test_holds(name: str, law: str) -> None:
    verdict = verdict_of(name, law)
    assert verdict.status != "fail", verdict
    assert verdict.figure or verdict.reason


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_declared_silences_a_law(name: str) -> None:
    """So that no law falls silent by itself."""
    declared = named(name).declared
    silent = {
        "shift": not declared.relative,
        "penalty": not declared.penalty,
        "prefix": not declared.prefix_stable,
    }
    found = {law for law in LAWS if verdict_of(name, law).status == "n/a"}
    assert found == {law for law, because in silent.items() if because}


OPTIONS: dict[str, dict[str, Any]] = {
    "mla": {"attention": {**ATTENTION, "name": "mla", "kv_rank": None, "q_rank": None, "rope_dim": None}},
    "randomized": {"positions": {"name": "randomized", "max": None, "dense": False}},
    "dense": {"positions": {"name": "randomized", "max": None, "dense": True}},
    "offset": {"positions": {"name": "offset", "max": None}},
    "window": {"attention": {**ATTENTION, "window": 5}},
    "ssmax": {"attention": {**ATTENTION, "scale": "ssmax"}},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_hold_of_an_encoding_with_an_option(option: str) -> None:
    subject = subject_of({**SETTINGS, **OPTIONS[option], "encoding": named("rope").settings})
    failed = {law: v for law in LAWS if (v := judge(law, subject)).status == "fail"}
    assert not failed


@pytest.mark.parametrize("beyond", ["clamp", "truncate", "refuse"])
def test_hold_of_every_policy_past_the_end(beyond: str) -> None:
    settings = {**named("learned").settings, "beyond": beyond}
    subject = subject_of({**SETTINGS, "encoding": settings})
    verdicts = {law: judge(law, subject) for law in LAWS}
    assert not [law for law, verdict in verdicts.items() if verdict.status == "fail"]
    if beyond != "clamp":
        assert subject.longest() == SHORT
        assert "no number past T=32" in verdicts["prefix"].reason


def test_what_is_said_is_one_line_of_json() -> None:
    for law in LAWS.values():
        assert law.statement and "\n" not in law.statement and len(law.statement) < 90
    json.dumps([vars(verdict_of("sum", law)) for law in LAWS])

"""Every law can fail: each broken encoding is caught by the law that it names."""

from __future__ import annotations

from typing import Any

import pytest
from broken_rotary import SharedTable
from every_broken import BROKEN
from subjects import of_class, verdict_of

from posenc.laws import LAWS, judge

CAUGHT = [cls for cls in BROKEN if cls.caught_by is not None]
UNSEEN = [cls for cls in BROKEN if cls.caught_by is None]


@pytest.fixture(autouse=True)
def empty_tables() -> None:
    SharedTable.shared.clear()


@pytest.mark.parametrize("cls", CAUGHT, ids=lambda cls: cls.__name__)
def test_is_caught_by_its_law(cls: Any) -> None:
    verdict = judge(cls.caught_by, of_class(cls))
    assert verdict.status == "fail", verdict
    assert cls.says in verdict.reason, verdict


@pytest.mark.parametrize("cls", CAUGHT, ids=lambda cls: cls.__name__)
def test_its_healthy_counterpart_is_not(cls: Any) -> None:
    shipped = isinstance(cls.healthy, str)
    verdict = (
        verdict_of(cls.healthy, cls.caught_by) if shipped else judge(cls.caught_by, of_class(cls.healthy))
    )
    assert verdict.status == "pass" or (verdict.status, verdict.reason[:8]) == ("n/a", "declared"), verdict


@pytest.mark.parametrize("cls", UNSEEN, ids=lambda cls: cls.__name__)
def test_what_no_law_sees_passes_them_all(cls: Any) -> None:
    subject = of_class(cls)
    verdicts = {law: judge(law, subject) for law in LAWS}
    assert not [law for law, verdict in verdicts.items() if verdict.status == "fail"], verdicts
    assert cls.__doc__.startswith("Healthy") or "Only the second route sees it." in cls.__doc__


def test_every_law_catches_something() -> None:
    assert {cls.caught_by for cls in CAUGHT} == set(LAWS)
    assert all(cls.__doc__ for cls in BROKEN)

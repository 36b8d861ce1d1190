"""Every law over every YAML of conf/encoding: a new encoding is held to them without touching this file."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from subjects import ATTENTION, SETTINGS, named, of_class, verdict_of
from torch import Tensor

from posenc.encodings.base import Encoding, Shape
from posenc.errors import UserError
from posenc.jobs.check import SHORT, subject_of
from posenc.laws import LAWS, Verdict, judge
from posenc.laws.float64 import Float64
from posenc.laws.numbers import far_positions
from posenc.laws.subject import FAR, logits, tokens
from posenc.model import kernels
from posenc.paths import conf_dir

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


def test_an_exception_is_a_failure_that_says_where() -> None:
    class Raising(Encoding):
        learned = "0"

        def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
            raise KeyError("no [red]such thing\nand more")

    subject = of_class(Raising)
    verdict = judge("causal", subject)
    assert verdict.status == "fail" and verdict.reason.startswith("KeyError:")
    assert "no [red]such thing" in verdict.reason and "test_laws.py:" in verdict.reason
    with pytest.raises(KeyError):
        judge("causal", subject, debug=True)


def test_a_nan_is_no_agreement() -> None:
    class NotANumber(Encoding):
        def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
            return x * float("nan")

    failing = {law for law in LAWS if judge(law, of_class(NotANumber)).status == "fail"}
    assert failing >= {
        "causal",
        "prefix",
        "order",
        "positions",
        "finite",
        "float32",
        "bf16",
        "gradient",
        "trace",
    }
    assert failing >= {"load", "tail", "blocks", "options"}


class Plain(Encoding):
    learned = "0"


class Wide(Plain):
    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x.double()


class Halves(Plain):
    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        return torch.arange(n) / 2


class Backwards(Plain):
    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        return torch.arange(n).flip(0)


class Everchanging(Plain):
    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        return torch.randperm(2 * n)[:n].sort().values


class Level(Plain):
    penalty = True

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return torch.zeros(self.shape.n_heads, len(r))


class OnlyInFloat32(Plain):
    """Its gradient in bf16 is nan."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gain = torch.nn.Parameter(torch.empty(1))

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * (1 + self.gain * (1 if q.dtype == torch.float32 else float("inf") * 0))


class Fading(Plain):
    """In bf16 a little worse with every token."""

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s if q.dtype == torch.float32 else s * (1 + q_pos[:, None] * 1.5e-4)


class Unnamed(Plain):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        if shape.position_limit is not None:
            raise UserError("encoding", "unnamed", "no")


class Deaf(Plain):
    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x * 0 if layer == 0 else x


class SingleQueries(Plain):
    """Forgets that a block may be one query."""

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * 2 if len(q_pos) == 1 else s


class Unmasked(Plain):
    """Knows one mask only."""

    instead = 0.0

    def weights(self, s: Tensor, allowed: Tensor, layer: int) -> Tensor:
        causal = torch.ones_like(allowed).tril(s.shape[-1] - s.shape[-2])
        p = super().weights(s, allowed, layer)
        return p if torch.equal(allowed, causal) else torch.softmax(s, dim=-1) + self.instead


class NotWithMasks(Unmasked):
    instead = float("nan")


class NotLoaded(Plain):
    """Draws what it never trains from the time of its making."""

    made = 0

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        NotLoaded.made += 1
        self.drawn = torch.randn(shape.d_model, generator=torch.Generator().manual_seed(self.made))

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x + self.drawn.to(x)


FAILS: list[tuple[type[Encoding], str, str]] = [
    (Plain, "positions", "no change of positions changes logits"),
    (type("Unstable", (Plain,), {"prefix_stable": False}), "prefix", "declares that a longer text"),
    (Wide, "finite", "same dtype"),
    (Halves, "positions", "positions are torch.float32"),
    (Backwards, "positions", "do not increase"),
    (Everchanging, "positions", "more than their generator"),
    (Level, "penalty", "the same at every distance"),
    (OnlyInFloat32, "gradient", "in bf16"),
    (Fading, "bf16", "times as far off at longer windows"),
    (Unnamed, "options", "randomized is refused without being named"),
    (Deaf, "causal", "change nothing"),
    (SingleQueries, "blocks", "queries one by one"),
    (Unmasked, "options", "with window: the future changes"),
    (NotWithMasks, "options", "with window: not finite"),
    (NotLoaded, "load", "before and after loading"),
    (NotLoaded, "trace", "of a fresh model"),
]


@pytest.mark.parametrize(("cls", "law", "says"), FAILS, ids=[f"{c.__name__}-{law}" for c, law, _ in FAILS])
def test_each_part_of_a_law_can_fail(cls: type[Encoding], law: str, says: str) -> None:
    verdict = judge(law, of_class(cls))
    assert verdict.status == "fail" and says in verdict.reason, verdict


@pytest.mark.parametrize("kernel", ["_causal", "_masked"])
def test_the_fused_kernels_are_compared(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, kernel, lambda q, k, v, *others: v)
    verdict = judge("blocks", of_class(Plain))
    assert verdict.status == "fail" and "the fused kernel" in verdict.reason


def test_far_positions_may_be_refused_and_near_ones_not() -> None:
    class Ending(Encoding):
        relative = True

        def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
            if int(pos[-1]) >= self.end:
                raise ValueError("that far it does not go")
            return x

        end = 16 * SHORT * 2

    assert judge("float32", of_class(Ending)) == Verdict(
        "n/a", "", "refuses far positions: that far it does not go"
    )
    assert judge("finite", of_class(Ending)).status == "pass"
    assert "that far" in judge("shift", of_class(Ending)).reason

    class Spanning(Encoding):
        """What matters to it is how far apart the first and the last position are."""

        def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
            if int(pos[-1] - pos[0]) > 1000:
                raise ValueError("too far apart")
            return x

    assert far_positions(of_class(Spanning).fresh(), 4).tolist() == list(range(FAR - 8, FAR))
    assert judge("float32", of_class(Spanning)).status == "pass"

    class Short(Ending):
        end = SHORT

    assert judge("finite", of_class(Short)).status == "fail"


def test_windows_end_where_positions_do() -> None:
    drawn = subject_of(
        {
            **SETTINGS,
            "encoding": named("rope").settings,
            "positions": {"name": "randomized", "max": 100, "dense": False},
        }
    )
    assert drawn.longest() == 64 and drawn.windows([8, 100, 101]) == [8, 100]
    assert drawn.bounded is None


def test_models_of_a_subject_are_new_and_not_zero() -> None:
    subject = named("t5")
    one, other = subject.fresh(), subject.fresh()
    assert one is not other and one.encoding.table is not other.encoding.table
    assert one.encoding.table.any() and torch.equal(one.encoding.table, other.encoding.table)
    assert not subject.build(0).encoding.table.any()
    with pytest.raises(UserError, match="no_such"):
        subject.fresh(encoding={"no_such": 1})


def test_in_float64_everything_is() -> None:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(4, generator=generator)
    with Float64():
        x = torch.arange(3).float()
        made = [
            x,
            x.half(),
            x.to(torch.bfloat16),
            x.to("cpu", torch.float32),
            torch.zeros(2, dtype=torch.float32),
        ]
        made += [
            torch.tensor([1.0]),
            torch.nn.Linear(2, 2).weight,
            x.type(torch.float32),
            torch.arange(3) / 2,
        ]
        made += [torch.empty(3, dtype=torch.float32).normal_(), x.softmax(0, dtype=torch.float32)]
        assert {t.dtype for t in made} == {torch.float64}
        again = torch.randn(4, generator=generator.manual_seed(3))
        filled = torch.empty(4).normal_(generator=generator.manual_seed(3))
        assert torch.arange(3).dtype == torch.int64 and x.bool().dtype == torch.bool
    assert torch.equal(again, drawn.double()) and torch.equal(filled, drawn.double())
    assert torch.arange(3).float().dtype == torch.float32 and torch.get_default_dtype() == torch.float32


def test_the_default_type_is_put_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), Float64():
        raise ZeroDivisionError
    assert torch.tensor(1.0).dtype == torch.float32


def test_positions_given_reach_the_attention() -> None:
    """On its own the kernel counts distances from the tokens' places."""
    subject = named("alibi")
    ids = tokens(subject.fresh(), 2 * SHORT)
    pos = far_positions(subject.fresh(), SHORT)
    assert pos.tolist()[:2] == [0, 1] and pos.tolist()[-1] == FAR - 1
    counted, given = logits(subject.fresh(), ids, pos), logits(subject.anywhere(subject.fresh()), ids, pos)
    assert torch.equal(counted[:, :SHORT], given[:, :SHORT])
    assert not torch.equal(counted[:, SHORT:], given[:, SHORT:])


def test_what_is_said_is_one_line_of_json() -> None:
    for law in LAWS.values():
        assert law.statement and "\n" not in law.statement and len(law.statement) < 90
    json.dumps([vars(verdict_of("sum", law)) for law in LAWS])

"""Every law can fail, in each of its parts, and says why."""

import math

import pytest
import torch
from broken import BROKEN, SharedTable, Turned
from subjects import of_class

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.laws import LAWS, Verdict, judge
from posenc.laws.float64 import Float64
from posenc.laws.subject import FAR
from posenc.model import kernels
from posenc.running.law_check import SHORT


@pytest.fixture(autouse=True)
def empty_tables():
    SharedTable.shared.clear()


@pytest.mark.parametrize("cls", [cls for cls in BROKEN if cls.law], ids=lambda cls: cls.__name__)
def test_is_caught_by_its_law(cls):
    verdict = judge(cls.law, of_class(cls))
    assert verdict.status == "fail" and cls.says in verdict.reason, verdict


@pytest.mark.parametrize("cls", [cls for cls in BROKEN if not cls.law], ids=lambda cls: cls.__name__)
def test_what_no_law_sees_passes_them_all(cls):
    subject = of_class(cls)
    verdicts = {law: judge(law, subject) for law in LAWS}
    assert not [law for law, verdict in verdicts.items() if verdict.status == "fail"], verdicts
    assert cls.__doc__.startswith("Healthy") or issubclass(cls, Turned)


def test_every_law_catches_something():
    assert {cls.law for cls in BROKEN} - {None} | {law for law, _, _ in FAILS} == set(LAWS)
    assert all(cls.__doc__ for cls in BROKEN)


def refuse_without_a_name(self, shape):
    Encoding.__init__(self, shape)
    if shape.position_limit is not None:
        raise UserError("encoding", "unnamed", "no")


def only_causal(instead):
    def weights(self, s, allowed, layer):
        p = Encoding.weights(self, s, allowed, layer)
        causal = torch.ones_like(allowed).tril(s.shape[-1] - s.shape[-2])
        return p if torch.equal(allowed, causal) else torch.softmax(s, dim=-1) + instead

    return weights


def worse_in_bf16(self, s, q, k, q_pos, *others):
    return s if q.dtype == torch.float32 else s * (1 + q_pos[:, None] * 1.5e-4)


def nan_in_bf16(self, s, q, *others):
    return s if q.dtype == torch.float32 else s * math.nan


def drawn_when_made(self, x, pos, layer):
    return x + self.__dict__.setdefault("drawn", torch.randn(x.shape[-1]))


def of_the_process(self, n, *_):
    return torch.randperm(2 * n)[:n].sort()[0]


def flat(self, r, layer):
    return torch.zeros(self.shape.n_heads, len(r))


# law, part of its reason, hooks and declarations of an encoding that breaks it
FAILS = [
    ("positions", "no change of positions changes logits", {}),
    ("positions", "positions are torch.float32", {"positions": lambda self, n, *_: torch.arange(n) / 2}),
    ("positions", "do not increase", {"positions": lambda self, n, *_: torch.arange(n).flip(0)}),
    ("positions", "more than their generator", {"positions": of_the_process}),
    ("prefix", "declares that a longer text", {"prefix_stable": False}),
    ("causal", "change nothing", {"embed": lambda self, x, pos, layer: x * 0 if layer == 0 else x}),
    ("penalty", "the same at every distance", {"penalty": True, "distance_bias": flat}),
    ("bf16", "times as far off at longer windows", {"scores": worse_in_bf16}),
    ("blocks", "queries one by one", {"scores": lambda self, s, q, *_: s * 2 if q.shape[2] == 1 else s}),
    ("blocks", "the last 5 of 128", {"scores": lambda self, s, q, *_: s * 2 if q.shape[2] == 5 else s}),
    ("options", "with window: the future changes", {"weights": only_causal(0.0)}),
    ("options", "with window: not finite", {"weights": only_causal(math.nan)}),
    ("options", "randomized is refused without being named", {"__init__": refuse_without_a_name}),
    ("gradient", "in bf16", {"scores": nan_in_bf16}),
    ("trace", "of a fresh model", {"embed": drawn_when_made}),
]


@pytest.mark.parametrize(("law", "says", "hooks"), FAILS, ids=[f"{law}: {says}" for law, says, _ in FAILS])
def test_each_part_of_a_law_can_fail(law, says, hooks):
    verdict = judge(law, of_class(type("Plain", (Encoding,), hooks)))
    assert verdict.status == "fail" and says in verdict.reason, verdict


def test_an_exception_is_a_failure_that_says_where():
    def embed(self, x, pos, layer):
        raise KeyError("no [red]such thing\nand more")

    subject = of_class(type("Raising", (Encoding,), {"embed": embed}))
    verdict = judge("causal", subject)
    assert verdict.status == "fail" and verdict.reason.startswith("KeyError:")
    assert "no [red]such thing" in verdict.reason and "test_broken.py:" in verdict.reason
    with pytest.raises(KeyError):
        judge("causal", subject, debug=True)


def test_a_nan_is_no_agreement():
    nan = type("NotANumber", (Encoding,), {"embed": lambda self, x, pos, layer: x * math.nan})
    failing = {law for law in LAWS if judge(law, of_class(nan)).status == "fail"}
    compared = "causal prefix order positions float32 bf16 gradient trace load blocks options"
    assert failing >= set(compared.split())


@pytest.mark.parametrize("kernel", ["_causal", "_masked"])
def test_the_fused_kernels_are_compared(kernel, monkeypatch):
    monkeypatch.setattr(kernels, kernel, lambda heads, *rest: heads.v)
    verdict = judge("blocks", of_class(Encoding))
    assert verdict.status == "fail" and "the fused kernel" in verdict.reason


def ending(longest, span=False):
    """Refuse positions (or, with `span`, windows) from `longest` on."""

    def embed(self, x, pos, layer):
        if int(pos[-1] - pos[0] if span else pos[-1]) >= longest:
            raise ValueError("that far it does not go")
        return x

    return type("Ending", (Encoding,), {"relative": True, "embed": embed})


def test_far_positions_may_be_refused_and_near_ones_not():
    far = of_class(ending(32 * SHORT))
    assert judge("float32", far) == Verdict("n/a", "", "refuses far positions: that far it does not go")
    assert judge("bf16", far).status == "pass" and "that far" in judge("shift", far).reason
    assert judge("bf16", of_class(ending(SHORT))).status == "fail"
    spanning = of_class(ending(1000, span=True))
    assert spanning.far_positions(spanning.fresh()).tolist() == list(range(FAR - 2 * SHORT, FAR))
    assert judge("float32", spanning).status == "pass"


def test_in_float64_everything_is():
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(4, generator=generator)
    with Float64():
        x = torch.arange(3).float()
        made = [x.half(), x.to(torch.bfloat16), torch.zeros(2, dtype=torch.float32), torch.arange(3) / 2]
        made += [torch.nn.Linear(2, 2).weight, x.softmax(0, dtype=torch.float32)]
        assert {t.dtype for t in made} == {torch.float64} and torch.arange(3).dtype == torch.int64
        assert torch.equal(torch.randn(4, generator=generator.manual_seed(3)), drawn.double())
    assert torch.get_default_dtype() == torch.float32

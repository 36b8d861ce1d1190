"""Every law can fail, in each of its parts, and says why."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from broken import BROKEN, DrawnFrequencies, Float32Angles, SharedTable, Turned
from subjects import named, of_class

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.encodings.shared.rotary import Rotary, rotate_pairs
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
    assert verdict.status == "fail", verdict
    assert cls.says in verdict.reason


@pytest.mark.parametrize("cls", [cls for cls in BROKEN if not cls.law], ids=lambda cls: cls.__name__)
def test_what_no_law_sees_passes_them_all(cls):
    subject = of_class(cls)
    failures = {}
    for law in LAWS:
        verdict = judge(law, subject)
        if verdict.status == "fail":
            failures[law] = verdict.reason
    assert not failures
    assert cls.__doc__.startswith("Healthy") or issubclass(cls, Turned)


def test_the_law_of_float32_says_what_mends_angles():
    assert "need float64" in judge("float32", of_class(Float32Angles)).hint


def test_every_law_catches_something():
    laws_of_classes = {cls.law for cls in BROKEN if cls.law}
    laws_of_hooks = {law for law, _, _ in FAILS}
    assert laws_of_classes | laws_of_hooks == set(LAWS)


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.__name__)
def test_a_broken_encoding_says_what_is_broken(cls):
    assert cls.__doc__


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


def rising_at_the_last_position(self, q_pos, k_pos, layer):
    distance = (q_pos[:, None] - k_pos[None]).double()
    is_last = (q_pos == FAR - 1)[:, None]
    return torch.where(is_last, distance, -distance)[None]


# law, part of its reason, hooks and declarations of an encoding that breaks it
FAILS = [
    ("positions", "no change of positions changes logits", {}),
    ("positions", "positions are torch.float32", {"positions": lambda self, n, *_: torch.arange(n) / 2}),
    ("positions", "do not increase", {"positions": lambda self, n, *_: torch.arange(n).flip(0)}),
    ("positions", "more than their generator", {"positions": of_the_process}),
    ("prefix", "declares that a longer text", {"prefix_stable": False}),
    ("causal", "change nothing", {"embed": lambda self, x, pos, layer: x * 0 if layer == 0 else x}),
    ("penalty", "the same at every distance", {"penalty": True, "distance_bias": flat}),
    ("penalty", "rises with the distance", {"penalty": True, "bias": rising_at_the_last_position}),
    ("bf16", "times as far off at longer windows", {"scores": worse_in_bf16}),
    ("blocks", "queries one by one", {"scores": lambda self, s, q, *_: s * 2 if q.shape[2] == 1 else s}),
    ("blocks", "the last 5 of 128", {"scores": lambda self, s, q, *_: s * 2 if q.shape[2] == 5 else s}),
    ("options", "with window: the future changes", {"weights": only_causal(0.0)}),
    ("options", "with window: not finite", {"weights": only_causal(math.nan)}),
    ("options", "randomized is refused without being named", {"__init__": refuse_without_a_name}),
    ("gradient", "in bf16", {"scores": nan_in_bf16}),
    ("trace", "of a fresh model", {"embed": drawn_when_made}),
]


@pytest.mark.parametrize(
    ("law", "reason", "hooks"), FAILS, ids=[f"{law}: {reason}" for law, reason, _ in FAILS]
)
def test_each_part_of_a_law_can_fail(law, reason, hooks):
    verdict = judge(law, of_class(type("Plain", (Encoding,), hooks)))
    assert verdict.status == "fail", verdict
    assert reason in verdict.reason


class Raising(Encoding):
    def embed(self, x, pos, layer):
        raise KeyError("no [red]such thing\nand more")


def test_an_exception_is_a_failure_that_says_where():
    verdict = judge("causal", of_class(Raising))
    assert verdict.status == "fail"
    assert verdict.reason.startswith("KeyError:")
    assert "no [red]such thing" in verdict.reason
    assert "test_broken.py:" in verdict.reason


class RaisingInTorch(Encoding):
    def embed(self, x, pos, layer):
        return F.layer_norm(x, (3,))  # a line of Python in torch


class RaisingInPosenc(Encoding):
    def embed(self, x, pos, layer):
        return rotate_pairs(x, pos, pos, "half")


class RaisingInALibrary(Encoding):
    def embed(self, x, pos, layer):
        return x + torch.from_numpy(np.linalg.inv(np.zeros((1, 1))))


class RaisingInItsModule(Encoding):
    """Its class is in another file than the function that fails, which stands for an author's helper."""

    __module__ = "of_no_file"

    def embed(self, x, pos, layer):
        return F.layer_norm(x, (3,))


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (RaisingInTorch, "shape=[3]"),
        (RaisingInPosenc, "Expected"),
        (RaisingInALibrary, "Singular matrix"),
        (RaisingInItsModule, "shape=[3]"),
    ],
)
def test_an_exception_names_the_line_of_the_encoding_and_not_of_what_it_calls(cls, message):
    reason = judge("causal", of_class(cls)).reason
    line_of_embed = cls.embed.__code__.co_firstlineno + 1
    assert reason.endswith(f"(test_broken.py:{line_of_embed})")
    assert message in reason


def test_an_exception_of_an_own_encoding_names_its_file():
    def refuse(*_):
        raise KeyError

    subject = named("rope")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rotary, "frequencies", refuse)
        reason = judge("causal", subject).reason
    assert "(rope.py:" in reason


def test_with_debug_an_exception_goes_through():
    with pytest.raises(KeyError):
        judge("causal", of_class(Raising), debug=True)


class NotANumber(Encoding):
    def embed(self, x, pos, layer):
        return x * math.nan


COMPARING_LAWS = [
    *("causal", "prefix", "order", "positions", "float32", "bf16", "gradient", "trace", "load", "blocks"),
    "options",
]


@pytest.mark.parametrize(
    ("law", "declaration"),
    [
        ("penalty", "declare penalty = True"),
        ("shift", "declare relative = True"),
        ("count", "declare learned_parameters()"),
    ],
)
def test_a_law_that_does_not_apply_says_what_to_declare(law, declaration):
    class Undeclared(Encoding):
        def learned_parameters(self):
            return None

    verdict = judge(law, of_class(Undeclared))
    assert verdict.status == "n/a"
    assert verdict.reason.startswith(declaration)


def test_an_option_that_is_declared_to_be_refused_is_said_so():
    declared = type("Declared", (Encoding,), {"refuses": {"attention.window": "it has one"}})
    assert judge("options", of_class(declared)).reason.startswith("refused as declared: window; ")


def test_an_option_that_hooks_or_parameters_rule_out_is_not_said_to_be_declared():
    reason = judge("options", of_class(type("Plain", (Encoding,), {}))).reason
    assert reason == "ruled out by its code: per_layer"


def test_an_option_that_is_refused_without_a_declaration_is_said_so():
    def refuse_by_name(self, shape):
        Encoding.__init__(self, shape)
        if shape.position_limit is not None:
            raise UserError("positions", "randomized, offset", "not with this one")

    verdict = judge("options", of_class(type("Silent", (Encoding,), {"__init__": refuse_by_name})))
    assert verdict.status == "pass"
    assert "refused, which `refuses` should declare: randomized, offset" in verdict.reason


@pytest.mark.parametrize("law", COMPARING_LAWS)
def test_a_nan_is_no_agreement(law):
    assert judge(law, of_class(NotANumber)).status == "fail"


@pytest.mark.parametrize("kernel", ["_causal", "_masked"])
def test_the_fused_kernels_are_compared(kernel, monkeypatch):
    monkeypatch.setattr(kernels, kernel, lambda heads, *rest: heads.v)
    verdict = judge("blocks", of_class(Encoding))
    assert verdict.status == "fail"
    assert "the fused kernel" in verdict.reason


# --- Buffers that are drawn: the two precisions must have the same numbers
@pytest.mark.parametrize(
    "drawn",
    [
        pytest.param(lambda n: torch.empty(n).uniform_(), id="uniform_"),
        pytest.param(lambda n: torch.empty(n, dtype=torch.float64).uniform_(), id="uniform_ in float64"),
        pytest.param(lambda n: torch.nn.init.normal_(torch.empty(n)), id="init"),
        pytest.param(lambda n: torch.normal(torch.zeros(n), torch.ones(n)), id="normal"),
        pytest.param(lambda n: torch.rand(n, dtype=torch.float64), id="rand in float64"),
        pytest.param(
            lambda n: torch.empty(n).uniform_(generator=torch.Generator().manual_seed(3)), id="generator"
        ),
    ],
)
def test_a_buffer_may_be_drawn_in_any_way(drawn):
    cls = type("Drawn", (DrawnFrequencies,), {"drawn": staticmethod(drawn)})
    verdict = judge("float32", of_class(cls))
    assert verdict.status == "pass", verdict


# --- Encodings that refuse far positions
class EndsAt(Encoding):
    """Refuses positions from `end` on."""

    relative = True
    end = 0

    def embed(self, x, pos, layer):
        if int(pos[-1]) >= self.end:
            raise ValueError("that far it does not go")
        return x


class EndsFar(EndsAt):
    end = 32 * SHORT


class EndsNear(EndsAt):
    end = SHORT


class EndsAfterSpan(Encoding):
    """Refuses windows of 1000 positions and more, wherever they are."""

    relative = True

    def embed(self, x, pos, layer):
        if int(pos[-1] - pos[0]) >= 1000:
            raise ValueError("that far it does not go")
        return x


def test_a_law_of_far_positions_does_not_apply_where_they_are_refused():
    verdict = judge("float32", of_class(EndsFar))
    assert verdict == Verdict("n/a", "", "refuses far positions: that far it does not go")


def test_a_law_says_that_far_positions_were_refused():
    assert "that far" in judge("shift", of_class(EndsFar)).reason


def test_a_law_of_near_positions_needs_no_far_ones():
    assert judge("bf16", of_class(EndsFar)).status == "pass"


def test_near_positions_may_not_be_refused():
    assert judge("bf16", of_class(EndsNear)).status == "fail"


def test_an_encoding_that_refuses_long_windows_is_judged_at_far_positions():
    subject = of_class(EndsAfterSpan)
    assert subject.far_positions(subject.fresh()).tolist() == list(range(FAR - 2 * SHORT, FAR))
    assert judge("float32", subject).status == "pass"


# --- The reference in float64
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda x: x.half(), id="half"),
        pytest.param(lambda x: x.to(torch.bfloat16), id="to"),
        pytest.param(lambda x: torch.zeros(2, dtype=torch.float32), id="zeros"),
        pytest.param(lambda x: torch.arange(3) / 2, id="division"),
        pytest.param(lambda x: torch.nn.Linear(2, 2).weight, id="module"),
        pytest.param(lambda x: x.softmax(0, dtype=torch.float32), id="softmax"),
    ],
)
def test_in_float64_every_float_is(make):
    with Float64():
        assert make(torch.arange(3).float()).dtype == torch.float64


def test_in_float64_whole_numbers_stay_so():
    with Float64():
        assert torch.arange(3).dtype == torch.int64


def test_in_float64_the_same_numbers_are_drawn():
    in_float32 = torch.randn(4, generator=torch.Generator().manual_seed(3))
    with Float64():
        in_float64 = torch.randn(4, generator=torch.Generator().manual_seed(3))
    assert torch.equal(in_float64, in_float32.double())


def test_after_float64_the_default_is_float32():
    with Float64():
        pass
    assert torch.get_default_dtype() == torch.float32

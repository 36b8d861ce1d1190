"""`posenc check --module`: the laws on somebody's bias or rotation."""

import json
from importlib.util import find_spec

import pytest

from posenc.laws import LAWS

pytestmark = pytest.mark.skipif(find_spec("x_transformers") is None, reason="needs x-transformers")

PACKAGE = "x_transformers.x_transformers"
MODULES = '''
import torch
from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias
from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

class FromTheEnd(AlibiPositionalBias):
    """Positions relative to the window's end."""
    def forward(self, i, j):
        return (-self.slopes * torch.arange(j).flip(0).float().sqrt()).expand(-1, i, -1)

class Scaled(AlibiPositionalBias):
    def __init__(self, heads, gain):
        super().__init__(heads)

class Buckets(RelativePositionBias):
    def __init__(self, heads):
        super().__init__(scale=1.0, causal=True, heads=heads)

angles = RotaryEmbedding(8)

def rotary(x, pos):
    return apply_rotary_pos_emb(x, *angles(pos))

def stretched(x, pos):
    """By the length of the text: as dynamic NTK without its cache."""
    return apply_rotary_pos_emb(x, *angles(pos * (1 + 0.01 * len(pos))))

def alibi(q_pos, k_pos):
    slopes = 2.0 ** -torch.tensor([2.0, 4, 6, 8])
    bias = -slopes[:, None, None] * (q_pos[:, None] - k_pos[None])
    return bias.masked_fill(k_pos[None] > q_pos[:, None], float("-inf"))

def rounded(q_pos, k_pos):
    return alibi(q_pos, k_pos).bfloat16()

instance = AlibiPositionalBias(4)

def heads_last(q_pos, k_pos):
    """As T5's code before its permutation."""
    return torch.zeros(len(q_pos), len(k_pos), 4)

narrow = lambda q_pos, k_pos: torch.zeros(3)
odd = lambda a, b: a
'''
# The laws that tell the broken modules below apart. Healthy ones are checked by all laws.
TELLING_LAWS = ("causal", "prefix", "shift", "blocks", "float32")


@pytest.fixture
def check(working_folder, posenc, monkeypatch):
    """Return a function that checks a module by some laws: its exit code and the verdicts."""
    (working_folder / "theirs.py").write_text(MODULES)

    def call(arguments, laws):
        monkeypatch.setattr("posenc.running.law_check.LAWS", {law: LAWS[law] for law in laws})
        result = posenc("check", "--module", *arguments, "--json")
        verdicts = json.loads(result.out)["verdicts"]
        return result.code, {verdict["law"]: verdict["verdict"] for verdict in verdicts}

    return call


@pytest.mark.parametrize(
    ("arguments", "laws"),
    [
        pytest.param(
            [f"{PACKAGE}:AlibiPositionalBias", "encoding=alibi"],
            [*LAWS, "same"],
            id="alibi of the package",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["theirs.py:alibi", "encoding=alibi"],
            [*LAWS, "same"],
            id="alibi as a function",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["theirs.py:Buckets"], [*LAWS], id="T5's, with weights drawn by torch", marks=pytest.mark.slow
        ),
    ],
)
def test_a_healthy_module_passes_all_laws(check, arguments, laws):
    code, verdicts = check(arguments, LAWS)
    assert code == 0
    assert list(verdicts) == laws
    assert "fail" not in verdicts.values()


@pytest.mark.parametrize(
    ("arguments", "broken_laws"),
    [
        pytest.param(["theirs.py:rounded", "encoding=alibi"], {"same"}, id="bf16 is not the encoding"),
        pytest.param(["theirs.py:FromTheEnd"], {"prefix", "blocks"}, id="positions from the end"),
        # Its angles are float32, so that logits move by 2e-4 at 65 536.
        pytest.param(["theirs.py:rotary", "encoding=rope"], {"shift"}, id="angles in float32"),
        pytest.param(
            ["theirs.py:rotary", "encoding=rope", "encoding.base=500"], {"shift", "same"}, id="another base"
        ),
        pytest.param(["theirs.py:stretched"], {"prefix", "blocks", "float32"}, id="by the text's length"),
    ],
)
def test_a_broken_module_fails_the_laws_that_it_breaks(check, arguments, broken_laws):
    code, verdicts = check(arguments, TELLING_LAWS)
    assert code == 1
    assert {law for law, verdict in verdicts.items() if verdict == "fail"} == broken_laws


def test_an_instance_of_a_module_is_checked(check):
    code, verdicts = check(["theirs.py:instance", "encoding=alibi"], ["causal"])
    assert verdicts == {"causal": "pass", "same": "pass"}
    assert code == 0


def test_a_module_is_compared_at_the_size_that_was_chosen(check):
    """Tiny has eight heads, and the laws' own size has four."""
    code, verdicts = check([f"{PACKAGE}:AlibiPositionalBias", "encoding=alibi", "model=tiny"], ["causal"])
    assert verdicts == {"causal": "pass", "same": "pass"}
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["theirs.py:odd"], "takes (a, b)"),
        (["theirs.py:narrow"], "fails at 8 positions of 4 heads"),
        (["theirs.py:heads_last"], "returns (5, 8, 4), which does not end in (T, S) = (5, 8)"),
        (["theirs.py:Scaled"], "needs gain"),
        (["theirs.py:nothing"], "cannot be imported (AttributeError"),
        (["nowhere.at.all:f"], "cannot be imported (ModuleNotFoundError"),
        (["theirs.py:alibi", "--all"], "leave out one of the two"),
        (["theirs.py:alibi", "encoding=alibbi"], "did you mean: alibi"),
        (["theirs.py:alibi", "train.lr=1"], "has no effect on the laws"),
    ],
    ids=str,
)
def test_a_module_that_cannot_be_checked_is_refused(working_folder, posenc, arguments, message):
    (working_folder / "theirs.py").write_text(MODULES)
    result = posenc("check", "--module", *arguments)
    assert result.code == 2
    assert result.out == ""
    assert message in result.err

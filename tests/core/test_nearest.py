"""What is close enough to a wrong word to be suggested."""

import pytest

from posenc.core.errors import first_few, nearest

CLOSE = [
    ("ropee", ["alibi", "rope", "hope"], "rope"),
    ("yran", ["pi", "yarn"], "yarn"),  # swapped letters
    ("RoPE", ["nope", "rope"], "rope"),
    ("fixed", ["sliding", "fixed-target"], "fixed-target"),  # a whole part
    ("bf16-mixed", ["auto", "fp32", "bf16"], "bf16"),
    ("fp16", ["auto", "fp32", "bf16"], "bf16"),  # of other tools
    ("perplexity", ["nats", "bpb", "ppl"], "ppl"),
]
FAR = [
    ("epochs", ["eps", "beta1"]),
    ("--encoding", ["--config-dir", "--debug"]),
    ("texts", ["wikitext2", "sympy"]),
    ("gpt2", ["bpe", "bytes", "hf"]),
    ("pi", ["pi_finetune"]),  # too short for a part
]


@pytest.mark.parametrize(("word", "choices", "choice"), CLOSE)
def test_what_is_meant_is_found(word, choices, choice):
    assert nearest(word, choices) == choice


@pytest.mark.parametrize(("word", "choices"), FAR)
def test_what_is_not_similar_is_not_suggested(word, choices):
    assert nearest(word, choices) is None


@pytest.mark.parametrize(
    ("names", "text"), [("ab", "a, b"), ("abc", "a, b, c"), ("abcde", "a, b, c, and 2 more")]
)
def test_the_first_few_are_named_and_the_others_counted(names, text):
    assert first_few(names, 3) == text

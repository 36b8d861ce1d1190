"""The `eval` group: each protocol gets its settings with their types; what is wrong is refused by its key."""

from types import SimpleNamespace

import pytest
from measuring import NEEDLE, default_settings
from tiny_model import T

from posenc.core.errors import UserError
from posenc.evaluation.extensions import default_knobs
from posenc.evaluation.protocols import needle, protocol_names
from posenc.evaluation.resolve import resolve_evaluation
from posenc.settings.tree import ExtendRequest, TokenizerSettings

TUNED = ExtendRequest(name="yarn", **default_knobs("yarn"), tune=True, tries=3)


def resolved(extend=None, **changes):
    return resolve_evaluation(default_settings(**changes), T, extend)


def test_the_default_settings_fit_all_protocols():
    evaluation = resolved(protocols=list(protocol_names()))
    assert evaluation.protocol_names == list(protocol_names())


def test_t_itself_is_always_measured():
    assert resolved(lengths=["0.5x", "2x"]).lengths.windows == (T // 2, T, 2 * T)


def test_lengths_are_multiples_of_the_base_length():
    assert resolved(lengths=["2x"], base_length=8).lengths.windows == (T,)


def test_a_protocol_that_is_named_twice_is_measured_once():
    assert resolved(protocols=["sliding", "sliding"]).protocol_names == ["sliding"]


def test_a_stride_of_null_is_the_block_of_fixed_target():
    (sliding,) = resolved(protocols=["sliding"]).protocols
    assert sliding.stride(resolved().lengths) == T // 4


REFUSED = {
    "eval.protocols": [{"protocols": ["slidding"]}, {"protocols": []}],
    "eval.lengths": [{"lengths": []}, {"lengths": [2]}, {"lengths": [2**25]}],
    "eval.target_fraction": [{"target_fraction": 0}, {"target_fraction": 1.5}, {"target_fraction": "x"}],
    "eval.stride": [{"stride": "9x"}, {"stride": 0}, {"stride": "1.03x"}],
    "eval.recall.windows": [{"recall": {"distances": [4], "pairs": [1], "windows": 0}}],
    "eval.recall.pairs": [
        {"recall": {"distances": [4], "pairs": [], "windows": 1}},
        {"recall": {"distances": [4], "pairs": None, "windows": 1}},
    ],
    "eval.recall.pairs[1]": [{"recall": {"distances": [4], "pairs": [1, 65], "windows": 1}}],
    "eval.recall.distances": [{"recall": {"distances": ["x"], "pairs": [1], "windows": 1}}],
    "eval.strid": [{"strid": 3}],
}


@pytest.mark.parametrize(
    ("key", "changes"), [(key, changes) for key, cases in REFUSED.items() for changes in cases], ids=str
)
def test_what_is_wrong_is_refused_by_its_key(key, changes):
    settings = {"protocols": list(protocol_names())} | changes
    with pytest.raises(UserError) as caught:
        resolved(**settings)
    assert caught.value.key == key


def test_an_unknown_key_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"did you mean: eval\.stride"):
        resolved(strid=3)


def test_a_setting_of_a_protocol_that_is_not_measured_is_not_held_against_the_windows():
    assert resolved(protocols=["positions"], stride="9x").protocol_names == ["positions"]


def test_the_stored_settings_have_the_types_of_their_protocols():
    evaluation = resolved(key_tokens="some/run", recall={"distances": [4], "pairs": [2.0], "windows": 1e2})
    stored = evaluation.settings.protocol_parameters
    assert stored["key_tokens"].startswith("/")
    expected = {"distances": [4], "pairs": [2], "windows": 100, "draw": 0, "kind": None}
    assert stored["recall"] == expected


def test_the_stored_settings_can_be_resolved_again():
    stored = resolved(key_tokens="some/run").settings
    assert resolve_evaluation(stored, T).settings == stored


def test_knobs_are_chosen_by_the_headline_even_if_it_is_not_measured():
    evaluation = resolved(TUNED, protocols=["positions"])
    assert evaluation.tries == 3
    assert evaluation.splits == ("validation", "test")


def test_a_block_that_no_window_holds_is_refused_where_knobs_are_chosen():
    with pytest.raises(UserError, match="shorter than the target block of 12 tokens"):
        resolved(TUNED, protocols=["positions"], target_fraction=0.75, lengths=["0.5x"])


def test_knobs_are_never_chosen_on_the_documents_that_are_reported():
    with pytest.raises(UserError, match="would choose on the documents that it reports"):
        resolved(TUNED, split="validation")


def test_a_tokenizer_with_too_few_words_is_refused_with_the_text(monkeypatch):
    """So is the job, then, before its training."""
    evaluation = resolved(protocols=["needle"], needle=NEEDLE | {"keys": [40]})
    monkeypatch.setattr(needle, "MOST_WORDS", 64)
    facts = SimpleNamespace(task=None, fingerprint="corpus")
    with pytest.raises(UserError, match="at most 64 words here, so 32 keys"):
        evaluation.check_text(facts=facts, tokenizer=TokenizerSettings(name="bytes"), plant=None)


def test_a_protocol_of_planted_pairs_refuses_a_given_model():
    with pytest.raises(UserError, match="asks for what posenc planted"):
        resolved(protocols=["recall"]).check_given_model()


def test_key_tokens_refuses_a_model_with_its_own_tokenizer():
    with pytest.raises(UserError, match="this model's tokenizer"):
        resolved(protocols=["key-tokens"]).check_transformers_model()

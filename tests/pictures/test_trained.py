"""Panels of a trained model: their numbers and what they say, by statistics that are made up."""

import numpy as np
import pytest

from posenc.evaluation.attention import AttentionStatistics
from posenc.pictures.trained import Behaviour, trained_panels

T = 16
LAYERS = 3
QUERIES = 4


def equal_attention(window):
    """Statistics of equal weights on all keys of a window."""
    return AttentionStatistics(
        entropy=np.full(LAYERS, np.log(window)),
        first=np.array([1 / window, 0.5, 1 / window]),
        variance=np.ones(LAYERS),
        by_distance=np.full((LAYERS, window), 1 / window),
    )


def test_the_mean_is_of_all_layers_though_some_are_drawn():
    layers = 12
    spread_of_layers = np.where(np.arange(layers) == 4, 100.0, 0.0)
    first = np.where(np.arange(layers) == 4, 0.9, 0.1)
    attention = {
        window: AttentionStatistics(
            entropy=spread_of_layers,
            first=first,
            variance=np.ones(layers),
            by_distance=np.full((layers, window), 1 / window),
        )
        for window in (T, 8 * T)
    }
    panels = {
        panel.title: panel for panel in trained_panels(Behaviour(T, 9, attention, QUERIES, np.ones(8 * T)))
    }
    entropy = panels["Entropy of attention"]
    assert len(entropy.measured_lines) == 6
    assert f"({100 / 12:.2f} and {100 / 12:.2f} nats, mean of the layers)" in entropy.sentence
    assert "gets most in layer 5, 90% at T" in panels["Attention on the first token"].sentence


def behaviour(nats):
    attention = {window: equal_attention(window) for window in (T // 4, T // 2, T, 2 * T, 4 * T, 8 * T)}
    return Behaviour(T, 9, attention, QUERIES, nats)


@pytest.fixture
def panels():
    nats = np.where(np.arange(1, 8 * T + 1) <= 2 * T, 1.0, 3.0)
    return {panel.title: panel for panel in trained_panels(behaviour(nats))}


def test_distances_are_those_that_every_query_has(panels):
    at_t, at_far = panels["Attention of the trained model"].lines
    assert len(at_t.x) == T - QUERIES + 1
    assert len(at_far.x) == 8 * T - QUERIES + 1


def test_the_share_of_distances_that_were_never_trained_is_said(panels):
    past = (8 * T - T) / (8 * T)
    sentence = panels["Attention of the trained model"].sentence
    assert f"at 8T, {100 * past:.0f}% of the attention goes farther" in sentence
    assert "the nearest 4 keys get 25% at T and 3% at 8T" in sentence


def test_the_first_token_is_said_for_the_layer_where_it_gets_most(panels):
    sentence = panels["Attention on the first token"].sentence
    assert "gets most in layer 2, 50% at T (an equal share is 6%) and 50% at 8T" in sentence


def test_entropy_is_said_as_a_number_of_equal_keys(panels):
    assert "like 16 equal keys at T and 128 at 8T" in panels["Entropy of attention"].sentence


def test_layers_have_lines_beside_equal_shares(panels):
    labels = [line.label for line in panels["Entropy of attention"].lines]
    assert labels == ["layer 1", "layer 2", "layer 3", "equal shares"]


def test_the_position_past_which_the_loss_stays_high_is_said(panels):
    sentence = panels["Loss by position, windows of 8T"].sentence
    assert "1.00 nats from T/2 to T; past position 32 it stays more than 0.1 above" in sentence
    assert "ends at 3.00" in sentence


def test_the_level_is_the_mean_over_positions_and_not_over_bins():
    nats = np.linspace(4.0, 0.0, 8 * T) ** 2
    panel = trained_panels(behaviour(nats))[-1]
    level = nats[T // 2 : T].mean()  # of positions T/2 + 1 to T, where bins have one to three positions
    assert f"the loss is {level:.2f} nats from T/2 to T" in panel.sentence


def test_a_loss_that_stays_has_no_such_position():
    panel = trained_panels(behaviour(np.ones(8 * T)))[-1]
    assert "it does not stay more than 0.1 above" in panel.sentence


def test_t_is_marked_in_every_panel(panels):
    assert all(panel.marks["T"] == T for panel in panels.values())


@pytest.fixture
def sentence_up_to_t():
    """The sentences of a model that was measured up to T alone, by the titles of their panels."""
    attention = {window: equal_attention(window) for window in (T // 2, T)}
    of_short_texts = Behaviour(T, 9, attention, QUERIES, np.ones(T))
    return {panel.title: panel.sentence for panel in trained_panels(of_short_texts)}


@pytest.mark.parametrize(
    ("title", "sentence"),
    [
        ("Attention of the trained model", "To see: the nearest 4 keys get 25% at T."),
        (
            "Attention on the first token",
            "To see: the first token gets most in layer 2, 50% at T (an equal share is 6%).",
        ),
        (
            "Entropy of attention",
            "To see: attention spreads like 16 equal keys at T (2.77 nats, mean of the layers).",
        ),
        ("Loss by position, windows of T", "To see: the loss is 1.00 nats from T/2 to T."),
    ],
)
def test_without_longer_windows_only_t_is_said(sentence_up_to_t, title, sentence):
    assert sentence_up_to_t[title] == sentence

"""Passes: drawn positions are those of the window, whatever the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_decoder import SHAPE
from tiny_model import T

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, Shape
from posenc.evaluation.errors import NotApplicableError, OutOfMemoryError
from posenc.evaluation.generation import generate, write_text
from posenc.evaluation.models.callables import losses_of_logits
from posenc.evaluation.models.scoring import DecoderScorer, ModelPass
from posenc.evaluation.passes import DRAWS, Windows, run_in_batches
from posenc.model import loss
from posenc.model.decoder import Decoder, initialize
from posenc.training.memory import LiveTensors

RANDOMIZED = {"name": "randomized", "max": None, "dense": False}
N_TARGETS = 4


def loss_of(model, text, pos, index):
    """Nats of text[index + 1] after the tokens up to `index`."""
    logits = model(text[None, : index + 1], pos[: index + 1])[0, -1].double()
    return -logits.log_softmax(-1)[text[index + 1]].item()


@pytest.mark.parametrize("window", [T // 2, T, 4 * T])
@pytest.mark.parametrize(("name", "batch"), [("rope", 10**6), ("learned", 3 * T)])
@torch.no_grad()
def test_drawn_positions_are_those_of_the_window(subject_of, name, batch, window):
    """Drawn by seed, length and the window's number, never by the batch."""
    subject = subject_of(name, batch_tokens=batch, positions=RANDOMIZED)

    def read(i):
        return subject.store.tokens[7 * i : 7 * i + window + 1]

    losses = subject.losses_of_new_pass(Windows(read, 2 * DRAWS + 5, window, N_TARGETS))
    model = subject.model.eval()
    for i in (0, 1, DRAWS - 1, DRAWS, 2 * DRAWS + 4):
        pos = model.positions(window, generator_for(0, "evaluation", window, i % DRAWS))
        text = torch.from_numpy(read(i).astype(np.int64))
        by_hand = [loss_of(model, text, pos, index) for index in range(window - N_TARGETS, window)]
        assert losses[i] == pytest.approx(by_hand, abs=1e-4), i


def test_scores_are_the_losses_and_the_models_first_choices(subject_of):
    subject = subject_of("rope")

    def read(i):
        return subject.store.tokens[9 * i : 9 * i + T + 1]

    windows = Windows(read, 40, T, 3)
    scores = subject.scores_of_new_pass(windows)
    assert (scores.nats == subject.losses_of_new_pass(windows)).all()
    logits = subject.model(torch.from_numpy(read(7)[None, :-1].astype(np.int64)), torch.arange(T))[0, -3:]
    assert scores.is_best[7].tolist() == [
        int(best) == target for best, target in zip(logits.argmax(-1), read(7)[-3:], strict=True)
    ]


def windows_from_each_token(subject, count):
    """Return windows of T tokens, each one token later than the one before."""
    return Windows(lambda i: subject.store.tokens[i : i + T + 1], count, T, N_TARGETS)


@pytest.mark.parametrize("positions", [None, RANDOMIZED], ids=["contiguous", "drawn"])
def test_a_pass_tells_its_share_after_every_batch(subject_of, positions):
    shares = []
    subject = replace(subject_of("rope", batch_tokens=3 * T, positions=positions), on_batch=shares.append)
    subject.losses_of_new_pass(windows_from_each_token(subject, 40))
    assert len(shares) >= 40 / 3
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_the_share_of_a_single_window_with_a_drawn_position_ends_at_1(subject_of):
    shares = []
    subject = replace(subject_of("rope", positions=RANDOMIZED), on_batch=shares.append)
    subject.losses_of_new_pass(windows_from_each_token(subject, 1))
    assert min(shares) >= 0
    assert shares[-1] == 1


def test_the_share_inside_a_batch_is_one_of_all_windows(subject_of):
    shares = []
    subject = replace(subject_of("rope", batch_tokens=2 * T), on_batch=shares.append)
    windows = windows_from_each_token(subject, 4)  # two batches
    run_in_batches(subject, windows, lambda batch: batch.on_layer(0.5))
    assert shares == [0.25, 0.5, 0.75, 1]


@pytest.mark.parametrize("n_targets", [1, T])
def test_an_encoding_that_truncates_reads_t_tokens_if_they_hold_the_targets(subject_of, n_targets):
    subject = subject_of("learned", beyond="truncate")
    assert subject.window_inputs(2 * T, n_targets).n_inputs == T


def test_a_window_may_have_the_last_position_that_an_encoding_has(subject_of):
    subject = subject_of("binary", bits=5)
    assert subject.window_inputs(2**5, 1).draws[0][-1] == 2**5 - 1


def test_a_window_with_one_position_more_than_an_encoding_has_is_not_measured(subject_of):
    subject = subject_of("binary", bits=5)
    with pytest.raises(NotApplicableError, match="no encoding of positions from 32 on"):
        subject.window_inputs(2**5 + 1, 1)


@pytest.mark.parametrize("error", [MemoryError("no"), RuntimeError("CUDA out of memory. Tried to allocate")])
def test_memory_that_runs_out_while_a_model_writes_is_noted_as_in_any_pass(subject_of, monkeypatch, error):
    subject = subject_of("rope")

    def fail(*_):
        raise error

    monkeypatch.setattr(subject.model, "hidden", fail)
    with pytest.raises(OutOfMemoryError, match="oom at 2 tokens"):
        write_text(subject, [1, 2], 3, subject.window_inputs(T, 1), lambda written: False)


@pytest.mark.parametrize("encoding", ["rope", "normalized"])
def test_what_a_model_writes_is_its_first_choice_in_the_whole_window(subject_of, encoding):
    """`normalized` divides by the last position, so that a prefix alone would have other vectors."""
    subject = subject_of(encoding)
    text = subject.store.tokens[: 3 * T].reshape(3, T).astype(np.int64)
    window = T - 1
    is_marked = np.zeros(text.shape, dtype=bool)
    is_marked[:, [5, T - 4]] = True
    written = generate(subject, text, is_marked)
    given = torch.from_numpy(np.where(is_marked, written, text))
    pos = subject.model.positions(window, generator_for(0, "evaluation", window, 0))
    with torch.no_grad():
        first_choices = subject.model(given[:, :-1], pos).argmax(-1).numpy()
    assert (first_choices[:, [4, T - 5]] == written[:, [5, T - 4]]).all()


def test_positions_of_windows_are_those_of_an_evaluation_though_the_model_is_in_training(subject_of):
    subject = subject_of("rope", positions={"name": "offset", "max": 8 * T})
    subject.model.train()
    (pos,) = subject.window_inputs(T, 1).draws[:1]
    assert torch.equal(pos, torch.arange(T))


MANY_TOKENS = 8192  # a vocabulary whose logits take more memory than all else in a pass
WINDOW = 64


def scored_by_decoder(*, with_best):
    """Return the logits of a window by a decoder, its scores, and the most bytes that scoring it took."""
    model = Decoder(SHAPE, MANY_TOKENS, Encoding(Shape(16, 2, 8, 2, WINDOW)))
    initialize(model, 0)
    text = torch.randint(MANY_TOKENS, (1, WINDOW + 1), generator=torch.Generator().manual_seed(0))
    pos = torch.arange(WINDOW)
    model_pass = ModelPass(inputs=text[:, :-1], pos=pos, encoding=model.encoding, n_targets=WINDOW)
    scorer = DecoderScorer(model.eval(), "fp32", torch.device("cpu"))
    with torch.no_grad():
        logits = model(model_pass.inputs, pos)
        # a target that is the first choice, and one that is not
        text[0, -1] = logits[0, -1].argmax()
        with LiveTensors() as meter:
            scored = scorer.losses(model_pass, text[:, 1:], with_best=with_best)
    expected = losses_of_logits(logits, text[:, 1:], with_best=True)
    return scored, expected, meter.peak


@pytest.fixture
def blocks_of_logits(monkeypatch):
    """Make the logits of eight targets at a time, a quarter of a megabyte."""
    monkeypatch.setattr(loss, "MAX_LOGITS", 8 * MANY_TOKENS)


def test_first_choices_need_no_more_memory_than_the_losses(blocks_of_logits):
    _, _, peak = scored_by_decoder(with_best=False)
    _, _, peak_with_choices = scored_by_decoder(with_best=True)
    bytes_a_target = 64  # its loss, its first choice and what joins them
    assert peak_with_choices <= peak + bytes_a_target * WINDOW


def test_losses_and_first_choices_in_blocks_are_those_of_all_logits(blocks_of_logits):
    scored, expected, _ = scored_by_decoder(with_best=True)
    torch.testing.assert_close(scored.nats, expected.nats, atol=1e-6, rtol=0)
    assert torch.equal(scored.is_best, expected.is_best)
    assert scored.is_best.any()

"""induction: both copies are at the ends of a window, and a head that looks up one token copies them."""

import pytest
from measuring import protocol_of
from oracle import oracle_context
from tiny_model import T
from token_stores import request_for

SIZE = T // 4  # tokens of a copy


@pytest.fixture
def records(subject_of, measured):
    return measured(subject_of("nope"), [2 * SIZE - 2, 2 * SIZE - 1, 2 * T], protocols=["induction"])


def test_a_window_without_room_for_two_copies_is_a_note(records):
    note = records["induction", 2 * SIZE - 2]["note"]
    assert note == f"n/a: two copies of {SIZE} tokens do not fit into {2 * SIZE - 2}"


def test_two_copies_without_filler_are_measured(records):
    assert records["induction", 2 * SIZE - 1]["nats"] is not None


@pytest.mark.parametrize("window", [T, 8 * T, 16 * T])
def test_a_head_that_looks_up_one_token_copies_every_sequence(window):
    context = oracle_context(cue=1)
    protocol = protocol_of("induction")
    plan = protocol.plan(request_for(context.store, [T, window]))
    assert protocol.measure(context, plan, window).nats.max() < 1e-6


def test_the_unit_names_chance(records):
    assert records["induction", 2 * T]["unit"].startswith("nats per token of the second copy (chance ")

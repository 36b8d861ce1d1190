"""What is said of a comparison: facts, the answer, the notes."""

import json
from dataclasses import replace

import pytest
from fake_runs import T, compared, positions, recall_records, record, write_run

from posenc.report.formats import render
from posenc.report.reports import paper_report, short_report
from posenc.report.sentences.answer import answer
from posenc.report.sentences.facts import IN_FACTS, facts_of
from posenc.report.sentences.notes import full_notes, sample_line, unit_note
from posenc.report.sentences.recall import recall_line
from posenc.report.texts import share_with_interval
from posenc.results import load_runs
from posenc.results.beside.recall_cells import Place, RecallCell
from posenc.results.comparison import compare_runs
from posenc.results.identity import Conditions

WEAK = [record(T, 1.8), record(8 * T, 1.8), record(T, 1.81, protocol="trigram")]


def write_losses(root, losses_at_8x):
    """Three seeds of each encoding, whose loss at T is 1."""
    for name, loss in losses_at_8x.items():
        for seed in range(3):
            losses = {1: 1.0 + 0.0001 * seed, 8: loss + 0.0001 * seed}
            write_run(root, name, seed=seed, losses=losses)


@pytest.fixture
def five(tmp_path):
    write_losses(tmp_path, {"alibi": 1.001, "rope": 1.1, "nope": 2.0, "t5": 3.0, "cope": 0.9})
    return tmp_path


def test_the_facts_are_what_all_rows_share(sweep):
    facts = facts_of(compared(sweep))
    assert facts[:4] == ["4 encodings", "3 seeds", "nano 0.8M", "T = 64 bytes"]


@pytest.mark.parametrize(
    ("accuracy", "ci95", "text"),
    [
        (0.9934, (0.9862, 0.9978), "99±1"),  # rounded ends would make it 99±0
        (0.814, (0.7798, 0.8482), "81±3"),
        (0.71, (0.03, 1.0), "71 [3, 100]"),
        (0.97, (0.9466, 0.9996), "97±3"),
    ],
)
def test_half_an_interval_of_recall_is_rounded_once(accuracy, ci95, text):
    cell = RecallCell(
        place=Place(multiple=8.0, window=8 * T, distance=4 * T, pairs=4),
        accuracy=accuracy,
        spread=None,
        ci95=ci95,
        nats=0.1,
        windows=512,
        seeds=3,
        has_fixed_draw=False,
    )
    assert share_with_interval(cell) == text


@pytest.mark.parametrize(
    ("parameters", "size"),
    [
        ((820_000, 820_000), "nano 0.82M"),
        ((9_600_000, 9_900_000), "nano 10M"),
        ((94e6, 123e6), "nano 94-123M"),
    ],
)
def test_the_size_of_models_is_in_millions(sweep, parameters, size):
    comparison = compared(sweep)
    header = replace(comparison.header, parameters=parameters)
    assert size in facts_of(replace(comparison, header=header))


def test_one_document_is_no_plural(tmp_path):
    losses = [record(int(multiple * T), loss, count=1) for multiple, loss in ((1, 1.2), (8, 2.0))]
    write_run(tmp_path, records=losses)
    assert sample_line(compared(tmp_path)).startswith("1 test document;")


def test_of_a_loss_at_t_alone_nothing_is_said_beyond(tmp_path):
    write_run(tmp_path, losses={1: 1.2, 8: 2.0})
    comparison = compared(tmp_path, columns=[1])
    assert answer(comparison) == "No length beyond T is shown."
    assert sample_line(comparison).endswith("; 1 seed")


def test_the_facts_of_a_single_row_begin_with_its_name(tmp_path):
    write_run(tmp_path, "rope", losses={1: 1.0})
    facts = facts_of(compared(tmp_path))
    assert facts[0] == "rope"
    assert "seed 0" in facts


def write_measured(root, trained_on, measured_on):
    """A run that was trained on one text and measured on another, or on the same one."""
    fingerprints = {"code": "c" * 64, "prose": "e" * 64}
    losses = [
        record(window, 1.0, corpus=measured_on, fingerprint=fingerprints[measured_on])
        for window in (T, 8 * T)
    ]
    corpus = {"name": trained_on, "fingerprint": fingerprints[trained_on]}
    write_run(root, records=losses, facts={"corpus": corpus})


def test_where_a_model_was_measured_is_said_if_it_is_another_text_than_that_of_training(tmp_path):
    write_measured(tmp_path, "code", "code")
    write_measured(tmp_path, "prose", "prose")
    write_measured(tmp_path / "elsewhere", "code", "prose")
    facts = [facts_of(table) for table in compare_runs(load_runs([tmp_path]))]
    texts = [[fact for fact in of_table if "eeee" in fact or "cccc" in fact] for of_table in facts]
    assert sorted(texts) == [
        ["corpus code cccccccccccc"],
        ["corpus code cccccccccccc", "evaluated on prose eeeeeeeeeeee"],
        ["corpus prose eeeeeeeeeeee"],
    ]


def test_the_answer_names_the_best_at_both_ends(five):
    text = answer(compared(five))
    assert text.startswith("Lowest loss at T: ")
    assert "(tied: 4 others)" in text
    assert "Lowest loss at 8x: cope." in text


def test_verdicts_of_rows_with_one_seed_are_not_counted_beside_rows_of_three(five):
    write_run(five, "fire", losses={1: 1.0, 8: 1.0})
    text = answer(compared(five))
    assert "At 8x, of 5 rows with 3 or more seeds, cope gains; alibi keeps its loss;" in text


def write_noisy(root, name, losses):
    """A run for each loss, which it has at T and at 8T."""
    for seed, loss in enumerate(losses):
        write_run(root, name, seed=seed, losses={1: loss, 8: loss})


def test_two_seeds_nearly_a_nat_apart_are_unresolved_with_what_would_settle_it(tmp_path):
    write_noisy(tmp_path, "alibi", [1.86, 2.26])
    write_noisy(tmp_path, "nope", [2.75, 3.15])
    text = answer(compared(tmp_path))
    assert "Lowest loss at T and 8x: alibi. Unresolved at T and 8x: nope (2 seeds: add seed=2)." in text
    assert "tied" not in text


def test_a_row_of_one_seed_below_the_lowest_is_no_contradiction(tmp_path):
    write_noisy(tmp_path, "alibi", [1.86, 1.87])
    write_noisy(tmp_path, "nope", [1.8])
    assert answer(compared(tmp_path)).startswith(
        "Lowest loss at T and 8x: alibi (of rows with several seeds)."
    )


@pytest.mark.parametrize("make_report", [short_report, paper_report])
def test_the_note_on_marks_says_that_a_row_of_one_seed_is_no_best(tmp_path, make_report):
    write_noisy(tmp_path, "alibi", [1.86, 1.87])
    write_noisy(tmp_path, "nope", [1.8])
    notes = " ".join(make_report(compared(tmp_path)).notes)
    assert "(of rows with several seeds)" in notes


@pytest.mark.parametrize(
    ("seeds", "advice"),
    [
        (1, "(nope has 1 seed: add seed=1,2)"),
        (2, "(nope has 2 seeds: add seed=2)"),
        (4, "(alibi has 3 seeds: add seed=3)"),
    ],
)
def test_seeds_are_advised_for_the_row_with_the_fewest(tmp_path, seeds, advice):
    write_noisy(tmp_path, "alibi", [1.9, 2.0, 2.1])
    for seed in range(seeds):
        losses = [record(T, 2.0 + 0.2 * seed, wiggle=0.9), record(8 * T, 2.0 + 0.2 * seed, wiggle=0.9)]
        write_run(tmp_path, "nope", seed=seed, records=losses)
    assert advice in answer(compared(tmp_path))


def test_documents_that_do_not_settle_it_are_named(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "alibi", seed=seed, records=[record(T, 1.0, wiggle=0.0)])
        write_run(tmp_path, "nope", seed=seed, records=[record(T, 1.03, wiggle=0.2)])
    assert "Unresolved at T: nope (40 documents: measure a larger text)." in answer(compared(tmp_path))


def test_against_a_baseline_what_is_unresolved_is_said_with_what_would_settle_it(tmp_path):
    write_noisy(tmp_path, "alibi", [1.86, 2.26])
    write_noisy(tmp_path, "nope", [2.2, 2.9])
    text = answer(compared(tmp_path, baseline="alibi"))
    assert text == "Against alibi at 8x nope is unresolved (2 seeds: add seed=2)."


# --- Marks
def marks_of(root, **request):
    """Return the marks of each row of the short table, by label."""
    (table,) = short_report(compared(root, **request)).tables
    return {row[0].text: [cell.mark for cell in row[1:] if cell.text != ""] for row in table.rows}


@pytest.fixture
def crossing(tmp_path):
    """rope has the lowest loss at T and at 8T, alibi the lowest change."""
    write_losses(tmp_path, {"rope": 1.3})
    for seed in range(3):
        write_run(tmp_path, "alibi", seed=seed, losses={1: 1.2 + 0.0001 * seed, 8: 1.35 + 0.0001 * seed})
    return tmp_path


def test_a_mark_is_on_the_quantity_that_its_cell_shows(crossing):
    marks = marks_of(crossing)
    assert marks["rope"][:2] == ["*", ""]
    assert marks["alibi"][:2] == ["", "*"]


def test_with_a_baseline_the_mark_is_on_the_lowest_difference(crossing):
    marks = marks_of(crossing, baseline="alibi")
    assert marks["rope"][:2] == ["*", "*"]


def test_the_change_of_an_undertrained_row_has_no_mark(sweep):
    assert not any(marks_of(sweep)["weak"])


@pytest.mark.parametrize("make_report", [short_report, paper_report])
def test_that_a_row_is_undertrained_is_a_reason_for_no_mark(sweep, make_report):
    assert any(note.endswith("or undertrained") for note in make_report(compared(sweep)).notes)


def test_an_unresolved_cell_has_no_mark(tmp_path):
    write_noisy(tmp_path, "alibi", [1.86, 2.26])
    write_noisy(tmp_path, "nope", [2.75, 3.15])
    assert marks_of(tmp_path)["nope"][0] == ""


def test_the_terminal_and_the_papers_name_the_quantities_alike(sweep):
    comparison = compared(sweep)
    quantities = "lowest loss at T, lowest change past T; "
    assert any(f"* {quantities}" in note for note in short_report(comparison).notes)
    assert any(f"bold: {quantities}" in note for note in paper_report(comparison).notes)


def test_the_caption_of_a_paper_names_what_is_unresolved(tmp_path):
    write_noisy(tmp_path, "alibi", [1.86, 2.26])
    write_noisy(tmp_path, "nope", [2.75, 3.15])
    (note,) = [note for note in paper_report(compared(tmp_path)).notes if note.startswith("bold")]
    assert "unresolved (nope at T)" in note


def test_the_summary_in_json_has_the_same_words(tmp_path):
    write_noisy(tmp_path, "alibi", [1.86, 2.26])
    write_noisy(tmp_path, "nope", [2.75, 3.15])
    document = json.loads(render([compared(tmp_path)], "json"))
    assert "Unresolved at T and 8x: nope (2 seeds: add seed=2)." in document["summary"]
    at_t = document["rows"][1]["cells"][0]["versus_best"]
    assert (at_t["word"], at_t["needs"]) == ("unresolved", "seeds")


def test_the_answer_says_what_each_row_does(five):
    text = answer(compared(five))
    assert "At 8x cope gains; alibi keeps its loss; rope gets worse; the other 2 collapse." in text


def test_against_a_baseline_the_answer_says_which_are_lower(five):
    text = answer(compared(five, baseline="nope"))
    assert text == "Against nope at 8x alibi, cope and rope are lower; t5 is higher."


def test_rows_that_all_do_the_same_are_one_clause(tmp_path):
    write_losses(tmp_path, {"rope": 2.0, "nope": 2.5})
    assert answer(compared(tmp_path)).endswith("At 8x all collapse.")


def test_curves_are_sorted_by_whether_they_break(tmp_path):
    write_run(tmp_path, "rope", records=[positions(breaks_at=97)])
    write_run(tmp_path, "alibi", records=[positions(breaks_at=None, flat=True)])
    assert answer(compared(tmp_path, protocol="positions")) == "Past T alibi does not break; rope breaks."


def test_the_answer_of_a_single_run_has_its_changes_and_where_it_breaks(tmp_path):
    losses = [record(T, 1.2), record(2 * T, 2.4), record(8 * T, 3.6)]
    write_run(tmp_path, "rope", records=[*losses, positions(breaks_at=97)])
    assert answer(compared(tmp_path)) == ("Collapses at 8x: +1.20 nats at 2x, +2.40 at 8x; breaks at 1.52x.")


def test_what_is_unclear_is_said_with_what_would_help(tmp_path):
    write_run(tmp_path, records=[record(T, 1.0), record(8 * T, 1.02, wiggle=0.3)])
    text = answer(compared(tmp_path))
    assert text == "Is unclear at 8x: +0.020 nats at 8x; more documents would help."


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({"losses": {1: 1.2}}, "Not measured past T."),
        ({"status": "failed", "reason": "boom", "results": False}, "No run has a number yet."),
        ({"records": WEAK}, "Undertrained: at T not below a byte trigram, so changes past T say little."),
    ],
)
def test_a_single_run_without_an_answer_says_why(tmp_path, run, expected):
    write_run(tmp_path, **run)
    assert answer(compared(tmp_path)) == expected


def test_one_undertrained_row_of_several_is_named(sweep):
    assert "Undertrained: weak." in answer(compared(sweep))


def test_if_all_are_undertrained_it_is_said_once(tmp_path):
    for name in ("alibi", "rope"):
        write_run(tmp_path, name, records=WEAK)
    comparison = compared(tmp_path)
    assert "All runs undertrained." in answer(comparison)
    texts = [cell.text for row in short_report(comparison).tables[0].rows for cell in row]
    assert "undertrained" not in texts


def test_the_answer_has_the_best_recall_and_who_did_not_learn(recalling):
    text = answer(compared(recalling))
    assert "Highest recall at 8x: hard_alibi (97%)." in text
    assert "Recall unresolved: fire (1 seed: add seed=1,2)." in text
    assert "Did not learn to recall: alibi and nope." in text


def test_if_no_row_learned_to_recall_that_is_the_answer(recalling):
    comparison = compared(recalling, protocol="recall", rows=["alibi", "nope"])
    assert answer(comparison) == "No row learned to recall."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rope", "recall: 97% within T, 62% at 2x, 14% at 4x, 5% at 8x; horizon 1.75x"),
        ("alibi", "recall: did not learn, 2% within T (below 90%)"),
    ],
)
def test_the_recall_of_a_single_run_is_a_line(recalling, name, expected):
    assert recall_line(compared(recalling, rows=[name])) == expected


def test_the_sample_of_one_seed_says_what_its_interval_does_not_cover(tmp_path):
    write_run(tmp_path, losses={1: 1.2, 8: 2.2})
    expected = "40 test documents; 1 seed: the CI covers documents, not training randomness"
    assert sample_line(compared(tmp_path)) == expected


def test_with_few_documents_there_is_no_interval(tmp_path):
    write_run(tmp_path, records=[record(T, 1.2, count=5), record(8 * T, 2.2, count=5)])
    assert sample_line(compared(tmp_path)) == "5 test documents; 1 seed: no 95% CI"


@pytest.mark.parametrize(
    ("protocol", "why_loss_changes"),
    [
        ("fixed-target", "the same targets see more text"),
        ("nonoverlapping", "the same text is cut into longer windows"),
        ("induction", "more random tokens stand between the copies"),
        ("not-of-this-version", "the window is longer"),
    ],
)
def test_the_note_on_units_says_what_the_changes_are_due_to(tmp_path, protocol, why_loss_changes):
    write_run(tmp_path, records=[record(T, 1.2, protocol=protocol), record(8 * T, 2.2, protocol=protocol)])
    note = unit_note(compared(tmp_path, protocol=protocol))
    assert note == f"loss in nats/byte at T, then the change when {why_loss_changes}"


def test_a_random_probe_has_sequences(sweep):
    assert "40 sequences" in sample_line(compared(sweep, protocol="induction"))


def test_the_notes_have_targets_and_the_reference(sweep):
    notes = full_notes(compared(sweep))
    assert "400 targets; 40 test documents" in notes
    assert "a byte trigram of the training text: 1.810 nats/byte" in notes


def test_the_notes_say_what_a_protocol_measures(sweep):
    notes = full_notes(compared(sweep, protocol="positions"))
    assert notes[0] == "positions: one pass over the longest context; a column is the last bin before it"


def test_the_notes_say_why_a_seed_has_no_number(tmp_path):
    write_run(tmp_path, "rope", losses={1: 1.0, 8: 2.0})
    write_run(tmp_path, "rope", seed=1, status="diverged", reason="nan at step 9", results=False)
    assert "rope: seed 1 diverged: nan at step 9" in full_notes(compared(tmp_path))


def test_recall_beside_losses_is_a_note_of_policies_too(tmp_path):
    correct = {8: 100, 32: 100, 56: 100, 112: 90}
    for name, params in (("learned", {"beyond": "untrained"}), ("rope", {})):
        write_run(tmp_path, name, records=[record(T, 1.0), *recall_records(correct)], params=params)
    assert "beyond=untrained of learned" in short_report(compared(tmp_path)).notes


# --- What a run was measured on as well
def facts_and_notes(root):
    report = short_report(compared(root))
    return report.facts, report.notes


def test_a_text_that_the_run_was_not_trained_on_says_so(tmp_path):
    write_run(tmp_path, records=[record(T, 1.0, fingerprint="e" * 64, corpus="mine")])
    facts, _ = facts_and_notes(tmp_path)
    assert "mine (trained on sympy)" in facts


def test_two_texts_of_one_name_are_told_apart_by_fingerprint(tmp_path):
    write_run(tmp_path, records=[record(T, 1.0, fingerprint="e" * 64)])
    facts, _ = facts_and_notes(tmp_path)
    assert f"sympy (trained on sympy {'f' * 12})" in facts


def test_the_text_of_the_training_needs_no_words(tmp_path):
    write_run(tmp_path)
    facts, _ = facts_and_notes(tmp_path)
    assert "sympy" in facts


def test_the_same_cells_of_other_targets_are_counted_on_one_screen(tmp_path):
    other = [record(T, 1.0, targets_hash="b"), record(8 * T, 1.0, targets_hash="b")]
    write_run(tmp_path, records=[record(T, 1.0), record(2 * T, 1.0), record(8 * T, 1.0), *other])
    _, notes = facts_and_notes(tmp_path)
    assert "not shown: 2 records of other targets" in notes


def test_earlier_checkpoints_are_counted_under_full_alone(tmp_path):
    write_run(tmp_path, records=[record(T, 1.0), record(T, 1.5, checkpoint_step=400)])
    _, notes = facts_and_notes(tmp_path)
    assert not any("not shown" in note for note in notes)
    assert "not shown: 1 record of earlier checkpoints" in full_notes(compared(tmp_path))


def test_a_set_of_targets_is_named_by_what_it_is(tmp_path):
    write_run(tmp_path, "alibi", records=[record(T, 1.0)])
    write_run(tmp_path, "rope", records=[record(T, 1.0, targets_hash="b", count=30)])
    facts, _ = facts_and_notes(tmp_path)
    assert facts[0] == "300 targets to 1x"


def test_a_weak_row_with_an_extension_is_not_all_rows(tmp_path):
    extended = record(8 * T, 1.9, extend={"name": "yarn"})
    write_run(tmp_path, "rope", records=[*WEAK, record(T, 1.8, extend={"name": "yarn"}), extended])
    write_run(tmp_path, "alibi", records=[record(T, 1.3), record(8 * T, 1.3), WEAK[-1]])
    text = answer(compared(tmp_path))
    assert "All runs undertrained" not in text
    assert "Undertrained: rope" in text


def test_what_cannot_be_compared_with_a_baseline_is_no_rival(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, "nope", seed=seed, losses={1: 1.0 + 0.3 * seed, 8: 2.0 + 0.3 * seed})
        write_run(tmp_path, "alibi", seed=seed, losses={1: 1.1 - 0.3 * seed, 8: 2.1 - 0.3 * seed})
    write_run(tmp_path, "learned", losses={1: 1.0})
    text = answer(compared(tmp_path, baseline="nope"))
    assert "0 seeds" not in text


def test_what_facts_say_elsewhere_are_names_of_conditions():
    conditions = Conditions(trained_on="sympy", tokenizer="bytes", context_length=T, model="nano")
    assert set(conditions.texts()) >= IN_FACTS

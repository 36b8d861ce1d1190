"""The sentence on top says what the table says."""

from pathlib import Path

from fake_runs import T, positions, record, write_run

from posenc.report.summary import summary_sentence
from posenc.results import load_runs
from posenc.results.comparison import View, compare


def said(root: Path, protocol: str = "fixed-target", metric: str = "nats", **view) -> str:
    return summary_sentence(compare(load_runs([root]), protocol, metric, False, View(**view)))


def sweep(root: Path, at_8x: dict[str, float], seeds: int = 3) -> None:
    for name, loss in at_8x.items():
        for seed in range(seeds):
            shift = 0.0001 * seed
            write_run(root, name, seed=seed, losses={1: 1.0 + shift, 8: loss + shift})


def test_words_sizes_and_counts(tmp_path: Path) -> None:
    sweep(tmp_path, {"alibi": 1.001, "kerple": 1.002, "rope": 1.1, "nope": 2.0, "t5": 3.0, "cope": 0.9})
    text = said(tmp_path)
    assert text.startswith(
        "At 8x cope gains (-0.100 nats); alibi and kerple keep their loss; rope loses (+0.100 nats); "
    )
    assert "nope and t5 collapse (+1.000 to +2.000 nats)" in text
    assert "Lowest at T" in text and "at 8x cope" in text
    assert text.endswith("3 seeds, 40 documents.")


def test_unclear_and_missing_are_told(tmp_path: Path) -> None:
    for seed, loss in enumerate((1.0, 1.1)):
        write_run(tmp_path, "rope", seed=seed, losses={1: 1.0, 8: loss})
        lost = [record(T, 1.0), record(8 * T, 0.0, note="oom")]
        write_run(tmp_path, "shaw", seed=seed, records=lost)
    text = said(tmp_path)
    assert "unclear for rope (+0.050 nats)" in text and "no number for shaw" in text


def test_many_rows_are_counted(tmp_path: Path) -> None:
    sweep(tmp_path, {f"e{i}": 2.0 for i in range(7)}, seeds=1)
    assert "At 8x 7 rows collapse (+1.000 nats)" in said(tmp_path)


def test_against_a_baseline(tmp_path: Path) -> None:
    sweep(tmp_path, {"rope": 2.0, "alibi": 1.0, "nope": 2.5, "cope": 2.001})
    text = said(tmp_path, baseline="rope")
    assert text.startswith(
        "Against rope at 8x, in nats: alibi is lower (-1.000); cope is a tie with it (+0.001); "
    )
    assert "nope is higher (+0.500)" in text


def test_curves_break_or_do_not(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", records=[positions(breaks_at=97)])
    write_run(tmp_path, "alibi", records=[positions(breaks_at=None, flat=True)])
    write_run(tmp_path, "cope", records=[positions(breaks_at=None)])  # rises, and nobody can say how surely
    text = "Past T rope breaks at 1.52x; alibi does not break; unclear for cope."
    assert said(tmp_path, "positions").startswith(text)


def test_a_single_length_and_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", losses={1: 1.0})
    assert said(tmp_path) == "1 seed, 40 documents."
    write_run(tmp_path / "b", "rope", results=False, status="failed")
    assert said(tmp_path / "b") == ""


def test_what_lost_a_seed_or_shares_none_with_the_baseline_is_named(tmp_path: Path) -> None:
    for seed in range(3):
        lost = [record(T, 1.0), record(8 * T, 0.0, note="diverged")]
        whole = [record(T, 1.0), record(8 * T, 2.6)]
        write_run(tmp_path, "alibi", seed=seed, records=lost if seed == 0 else whole)
        write_run(tmp_path, "rope", seed=seed, losses={1: 1.0, 8: 1.001})
    write_run(tmp_path, "nope", seed=7, losses={1: 1.0, 8: 1.0})
    assert "no verdict for alibi" in said(tmp_path)
    text = said(tmp_path, baseline="rope", rows=["rope", "nope"])
    assert "not held against it: nope" in text and "seed" not in text


def test_a_model_that_learned_nothing_is_named_so(tmp_path: Path) -> None:
    """It keeps its loss, since it has none to lose."""
    weak = [record(T, 1.8), record(8 * T, 1.8), record(T, 1.81, protocol="trigram")]
    write_run(tmp_path, "alibi", records=weak)
    text = said(tmp_path)
    assert "alibi (undertrained) keeps its loss" in text

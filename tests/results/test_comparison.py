"""A comparison by hand-made runs: what is averaged, paired, left out, named, ranked and shown."""

import math
from pathlib import Path

import pytest
from fake_runs import T, compared, positions, record, rows_of, write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.comparison import CompareRequest, compare_runs, protocols_of
from posenc.results.frame import cells_table, seeds_table

BIT = math.log(2)
YARN = {"name": "yarn", "factor": 2.0, "ramp": "index", "mscale_all_dim": 0.0}
BPE = {"tokenizer": {"name": "bpe", "vocab_size": 512}}
SMALL = {"model": {"name": "small", "d_model": 512}, "context_length": 256}
BIG = {"facts": {"context_length": 128}, "config": {"context_length": 128}}


def test_seeds_are_averaged_and_changes_paired_by_seed(tmp_path):
    for seed, (at_t, at_8t) in enumerate([(1.0, 1.5), (1.2, 1.9), (1.1, 1.5)]):
        write_run(tmp_path, seed=seed, losses={1: at_t, 8: at_8t})
    comparison = compared(tmp_path)
    (row,) = comparison.rows
    at, far = row.cells
    assert (row.label, row.seeds, [c.window for c in comparison.columns]) == ("rope", (0, 1, 2), [64, 512])
    assert (at.mean, at.spread, at.seeds, at.change) == (pytest.approx(1.1), pytest.approx(0.1), 3, 0.0)
    assert (at.verdict, far.verdict, far.versus_best) == (None, "worse", None)
    # changes 0.5, 0.7, 0.4: mean 0.5333, sd 0.15275
    assert (far.mean, far.change) == (pytest.approx(4.9 / 3), pytest.approx(1.6 / 3))
    assert far.change_spread == pytest.approx(0.152753, abs=1e-6)
    half = (far.verdict_ci95[1] - far.verdict_ci95[0]) / 2
    assert half == pytest.approx(4.3026527 * 0.152753 / math.sqrt(3) / BIT, rel=1e-5)
    assert (row.parameters, comparison.header.parameters) == (803_000, (803_000, 803_000))


def test_one_seed_has_an_interval_over_documents(tmp_path):
    write_run(tmp_path, records=[record(64, 1.0), record(128, 1.2, wiggle=0.3), record(256, 1.2)])
    cells = compared(tmp_path).rows[0].cells
    low, high = cells[1].change_ci95
    assert (low + high) / 2 == pytest.approx(0.2) == cells[1].change and cells[1].spread is None
    # differences 0.2 +- 0.2 over 40 documents: t(39) * 0.2 * sqrt(40 / 39) / sqrt(40)
    assert (high - low) / 2 == pytest.approx(2.0226909 * 0.2 / math.sqrt(39), rel=1e-6)
    bits = compared(tmp_path, "bpb").rows[0].cells[1].change_ci95
    assert bits == pytest.approx((low / BIT, high / BIT))


@pytest.mark.parametrize("metric", ["nats", "bpb", "ppl"])
def test_margins_are_in_bits_per_byte_whatever_the_metric(tmp_path, metric):
    """A token of two bytes: 0.025 nats a token are 0.018 bits a byte."""
    write_run(tmp_path, records=[record(w, loss, bytes=[20] * 40) for w, loss in ((64, 1.0), (128, 1.025))])
    far = compared(tmp_path, metric).rows[0].cells[1]
    assert (far.verdict, far.verdict_change) == ("same", pytest.approx(0.025 / 2 / BIT))


def test_diverged_failed_and_running_runs_stay_visible(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, "rope", seed=seed, losses={1: 1.0, 8: 1.0})
        write_run(tmp_path, "alibi", seed=seed, losses={1: 2.0, 8: 2.0})
    write_run(tmp_path, "rope", seed=2, losses={1: 0.1, 8: 0.1}, status="diverged", reason="nan at step 9")
    write_run(tmp_path, "t5", seed=0, status="failed", reason="boom", results=False)
    write_run(tmp_path, "alibi", seed=2, status="running", results=False)
    rows = rows_of(compared(tmp_path))
    rope, alibi, t5 = rows["rope"], rows["alibi"], rows["t5"]
    assert (rope.cells[0].mean, rope.cells[0].note) == (1.0, "1 of 3 diverged")  # 0.1 is not averaged in
    assert not any(cell.versus_best for row in rows.values() for cell in row.cells)  # survivors win nothing
    assert rope.cells[1].verdict is None and alibi.cells[1].verdict == "same"
    assert (alibi.cells[0].note, alibi.cells[0].seeds) == ("1 of 3 running", 2)
    assert (t5.cells[1].mean, t5.cells[1].note) == (None, "failed")
    assert "seed 2 diverged: nan at step 9" in rope.notes and "seed 0 failed: boom" in t5.notes


def test_notes_of_records_duplicates_and_missing_lengths(tmp_path):
    oom = record(512, 0, note="oom at 512 tokens, batch 1: no memory")
    write_run(tmp_path / "a", records=[record(64, 2.0, checkpoint_step=400), record(64, 1.0), oom])
    write_run(tmp_path / "b", records=[record(64, 5.0)], name="copy")
    write_run(tmp_path, "alibi", records=[record(64, 1.0), record(128, 1.1)])
    rows = rows_of(compared(tmp_path))
    assert [cell.note for cell in rows["rope"].cells] == [None, "not measured", "oom"]
    assert rows["rope"].cells[0].mean == pytest.approx(1.0)  # of the last checkpoint
    assert "8x: oom at 512 tokens, batch 1: no memory" in rows["rope"].notes
    assert any("seed 0 is there more than once" in note for note in rows["rope"].notes)
    assert rows["alibi"].cells[2].note == "not measured"


def test_rows_are_named_by_what_differs(tmp_path):
    plain = {"attention": {"name": "mha", "window": None, "scale": "none"}}
    latent = {"attention": {"name": "mla", "kv_rank": 8, "window": None, "scale": "logn"}}
    for config in (plain, latent, {"positions": {"name": "randomized", "max": None}}):
        write_run(tmp_path, config=config)
    for base in (10000, 500000.0):
        for seed in (0, 1):
            write_run(tmp_path, "xpos", seed=seed, params={"base": base, "fraction": 1.0})
    write_run(tmp_path, "learned", params={"beyond": "untrained"}, config={"device": "cuda"})
    write_run(tmp_path, "sum", params={"parts": [{"name": "alibi"}, {"name": "rope", "base": 500.0}]})
    write_run(tmp_path, "t5", config={"train": {"lr": 0.01, "tokens": 1}})
    comparison = compared(tmp_path)
    ropes = ["rope", "rope attention=mla scale=logn", "rope positions=randomized"]
    others = ["t5", "xpos base=10000", "xpos base=500000"]
    assert list(rows_of(comparison)) == ["alibi+rope", "learned", *ropes, *others]
    assert rows_of(comparison)["xpos base=500000"].seeds == (0, 1)
    assert comparison.header.also_differs["train.lr"] == ["0.003", "0.01"]
    without = write_run(tmp_path / "facts", facts={"attention": {"name": "mha", "window": 16}})
    (without / "config.yaml").unlink()
    assert list(rows_of(compared(tmp_path / "facts"))) == ["rope window=16"]
    for name, beta in (("adamw", 0.9), ("muon", 0.95)):
        write_run(tmp_path / "optim", config={"optim": {"name": name, "beta1": beta}})
    assert list(rows_of(compared(tmp_path / "optim"))) == ["rope adamw", "rope muon"]


def test_an_extension_is_compared_with_the_crop_line(tmp_path):
    far = [record(512, 2.5), record(512, 1.25, extend=YARN), record(64, 1.5, extend=YARN)]
    write_run(tmp_path, records=[record(64, 1.0), *far])
    write_run(tmp_path, seed=1, records=[record(64, 1.0), record(512, 2.5)])
    write_run(tmp_path, seed=2, records=[], status="diverged", reason="nan")
    rows = rows_of(compared(tmp_path))
    extended = rows["rope+yarn factor=2"]
    assert [cell.change for cell in extended.cells] == [pytest.approx(0.5), pytest.approx(0.25)]
    assert extended.notes == ("seed 2 diverged: nan",)
    assert (extended.cells[1].note, extended.cells[1].rankable) == ("1 of 2 diverged", False)


def test_runs_of_other_code_or_size_are_other_rows(tmp_path):
    for seed, code in ((0, "aa"), (1, "aa"), (1, "bb"), (2, None)):
        facts = {} if code is None else {"code": code}
        write_run(tmp_path, "mine", seed=seed, name=f"s{seed}-{code}", facts=facts)
    for seed in (0, 1):
        write_run(tmp_path, "rope", seed=seed)
    write_run(tmp_path, "rope", seed=1, status="diverged", results=False, config=SMALL)
    found = compared(tmp_path)
    seeds = {row.label.partition(" [")[0]: row.seeds for row in found.rows if row.encoding == "mine"}
    assert seeds == {"mine code=aa": (0, 1), "mine code=bb": (1,), "mine code=unknown": (2,)}
    assert found.header.also_differs == {}
    rope = [row for row in found.rows if row.encoding == "rope"]
    assert [row.cells[0].note for row in rope] == [None, "diverged"]
    assert rope[1].label.startswith("rope [rope-nano")
    write_run(tmp_path, "rope", seed=4, status="diverged", results=False)  # of the row's own size
    assert rows_of(compared(tmp_path))["rope"].cells[-1].note == "1 of 3 diverged"


OURS, OTHER = f"sympy {'f' * 12}", "e" * 64
MIXED = [
    ("tokenizer", "bytes", "bpe vocab_size=512", {"facts": BPE}),
    ("model", "nano", "tiny", {"facts": {"model": {"name": "tiny"}}}),
    ("context length", "64", "128", {"facts": {"context_length": 128}}),
    ("corpus", OURS, f"x {'e' * 12}", {"facts": {"corpus": {"name": "x", "fingerprint": OTHER}}}),
    ("evaluated on", OURS, f"sympy {'e' * 12}", {"records": [record(64, 1.0, fingerprint=OTHER)]}),
    ("split", "test", "validation", {"records": [record(64, 1.0, split="validation")]}),
    ("target set", "aaaaaaaa, to 8x", "b, to 1x", {"records": [record(64, 1.0, targets_hash="b")]}),
    ("tokens trained", "3276800", "1638400", {"records": [record(64, 1.0, checkpoint_step=400)]}),
    ("evaluated in", "its training's", "fp32", {"records": [record(64, 1.0, precision="fp32")]}),
]


@pytest.mark.parametrize(("key", "first", "second", "changes"), MIXED, ids=[one[0] for one in MIXED])
def test_what_cannot_share_a_ranking_is_tables_or_labelled(tmp_path, key, first, second, changes):
    write_run(tmp_path, "alibi")
    write_run(tmp_path, "rope", **changes)
    tables = compare_runs(load_runs([tmp_path]))
    groups = {one.rows[0].label: one.header.group for one in tables}
    assert groups == {"alibi": {key: first}, "rope": {key: second}}
    assert not any(one.header.mixed for one in tables)
    mixed = compared(tmp_path, allow_mixed=True)
    assert list(mixed.header.mixed) == [key] and all(row.mixed for row in mixed.rows)
    (alone,) = compare_runs(load_runs([tmp_path]), CompareRequest(rows=["alibi"]))
    assert (alone.header.group, alone.rows[0].mixed) == ({}, {})  # of what is shown


def test_groups_of_runs(tmp_path):
    """The most runs first; runs without numbers in the group of their settings, or the last one."""
    other = [record(64, 1.1, targets_hash="b"), record(1024, 1.1, targets_hash="b")]
    null = {"model": {"name": "nano", "n_layers": 4, "short_conv": None}}  # as in runs older than the option
    for seed, facts in enumerate(({}, null)):
        write_run(tmp_path, "rope", seed=seed, **BIG)
        write_run(tmp_path, "alibi", seed=seed, facts=facts)
    write_run(tmp_path, "fire", **BIG)
    write_run(tmp_path, "nope", records=other)
    write_run(tmp_path, "alibi", seed=2, status="failed", results=False)
    write_run(tmp_path, "t5", status="failed", results=False, config=BIG["config"])
    write_run(tmp_path, "cope", status="failed", results=False, config={"model": {"d_model": 9}})
    runs = load_runs([tmp_path])
    big, small, longer = compare_runs(runs)
    shown = [list(rows_of(one)) for one in (big, small, longer)]
    assert shown == [["fire", "rope", "t5"], ["alibi"], ["cope", "nope"]]
    assert big.header.group == {"context length": "128"}
    assert small.header.group == {"context length": "64", "target set": "aaaaaaaa, to 8x"}
    assert longer.header.group["target set"] == "b, to 16x"
    assert small.rows[0].cells[0].note == "1 of 3 failed"
    assert compare_runs(runs, CompareRequest(rows=["rope", "fire"], baseline="fire"))[0].header.group == {}
    # what fits one of them is no mistake
    chosen = compare_runs(runs, CompareRequest(columns=[16], sort="-16x", baseline="rope"))
    assert [one.header.baseline for one in chosen] == ["rope", None, None]
    assert [[column.multiple for column in one.columns] for one in chosen[1:]] == [[0.5, 1, 2, 4, 8], [16]]
    assert {one.header.protocol for one in compare_runs(runs, CompareRequest("all"))} == {"fixed-target"}


def words(comparison, i=0):
    return {row.label: (best := row.cells[i].versus_best) and best.word for row in comparison.rows}


def test_across_tokenizers_only_bits_per_byte_of_shared_documents_are_ranked(tmp_path):
    no = {"alibi": None, "rope": None}
    for shift, word in ((0, "above"), (5, "above"), (1000, None)):
        root = tmp_path / str(shift)
        other = record(64, 1.2, targets_hash="b")
        other["per_document"]["document"] = [d + shift for d in other["per_document"]["document"]]
        write_run(root, "alibi", records=[other], facts=BPE)
        write_run(root, "rope", records=[record(64, 1.0)])
        expected = {"alibi": word, "rope": "best"} if word else no
        assert words(compared(root, "bpb", allow_mixed=True)) == expected
        assert words(compared(root, "nats", allow_mixed=True)) == no
        write_run(root, "nope", records=[record(64, 1.0, targets_hash="c")])  # of bytes, on other targets
        assert words(compared(root, "bpb", allow_mixed=True)) == {**no, "nope": None}
    for name, stride in (("rope", 16), ("alibi", 32)):
        write_run(tmp_path / "s", name, records=[record(T, 1.0, protocol="sliding", stride=stride)])
    assert words(compared(tmp_path / "s", allow_mixed=True, protocol="sliding")) == no


def test_the_set_of_targets_that_most_runs_share_is_taken(tmp_path):
    shared = [record(64, 1.0), record(512, 1.1)]
    more = [record(w, 3.0, targets_hash="b") for w in (64, 512, 1024)]
    tuned_on = [record(w, 9.0, split="validation", targets_hash="v") for w in (64, 128, 256, 512, 1024)]
    write_run(tmp_path, "rope", records=shared + more + tuned_on)
    write_run(tmp_path, "alibi", records=shared + tuned_on)
    comparison = compared(tmp_path)
    assert [column.window for column in comparison.columns] == [64, 512]
    assert rows_of(comparison)["rope"].cells[0].mean == pytest.approx(1.0)
    assert (comparison.header.left_out, comparison.header.split) == (13, "test")
    runs = load_runs([tmp_path])
    (alone,) = compare_runs([r for r in runs if "rope" in r.name])
    assert [column.window for column in alone.columns] == [64, 512, 1024]  # then the longest curve
    with pytest.raises(UserError, match="compare that run alone"):
        compared(tmp_path, columns=[16.0])


def test_two_tunings_of_an_extension_are_not_made_into_one_row(tmp_path):
    def tuned(multiple, loss, knob):
        return record(multiple * T, loss, extend={"name": "window", "window": knob, "tuned": ["window"]})

    few, many = [tuned(m, 1.5, 16) for m in (1, 8)], [tuned(m, 1.4, 32) for m in (1, 2, 4, 8)]
    write_run(tmp_path, "rope", records=[*(record(m * T, 1.3) for m in (1, 2, 4, 8)), *few, *many])
    found = compared(tmp_path)
    (row,) = [row for row in found.rows if row.extend]
    assert [cell.mean for cell in row.cells] == pytest.approx([1.4] * 4) and found.header.left_out == 2


def test_perplexity_overflows_to_infinity_and_a_partial_change_is_none(tmp_path):
    for seed in (1, 2, 3):  # each fits a float, their sum and their squares do not
        write_run(tmp_path / "a", seed=seed, losses={1: 1.0, 8: 709.5})
    cell = compared(tmp_path / "a", "ppl").rows[0].cells[1]
    assert (cell.mean, cell.change, cell.spread, cell.note) == (math.inf, None, None, None)
    write_run(tmp_path / "b", seed=0, losses={1: 1.2, 8: 2.0})
    write_run(tmp_path / "b", seed=1, records=[record(T, 0, note="oom"), record(8 * T, 3.0)])
    cell = compared(tmp_path / "b").rows[0].cells[-1]
    assert (cell.mean, cell.seeds, cell.change, cell.note) == (2.5, 2, None, "1 of 2 with 1x")


@pytest.mark.parametrize(
    ("below", "wiggle", "marked"),
    [(0.101, 0.1, False), (0.099, 0.1, True), (0.15, 0.1, False), (0.15, 0.3, True), (-0.5, 0.1, True)],
)
def test_undertrained_is_not_clearly_below_the_reference(tmp_path, below, wiggle, marked):
    trigram = record(64, 1.81, protocol="trigram")
    other = record(64, 0.1, protocol="trigram", targets_hash="else")  # of targets that are not shown
    loss = record(64, 1.81 - below * BIT, wiggle=wiggle)
    write_run(tmp_path, records=[loss, record(512, 1.0), record(512, 1.0, extend=YARN), trigram, other])
    comparison = compared(tmp_path, "bpb")
    for row in comparison.rows:
        assert (row.undertrained or "").startswith(f"{-below:+.3f} bits per byte") == marked
    assert comparison.header.reference.mean == pytest.approx(1.81 / BIT)
    assert protocols_of(load_runs([tmp_path])) == ["fixed-target"]


def test_a_probe_without_bytes_has_no_verdict_and_no_rank(tmp_path):
    copied = {"protocol": "induction", "unit": "nats per copied token", "bytes": [0] * 40}
    for name, windows in (("rope", (64, 256, 512)), ("alibi", (64, 256))):
        write_run(tmp_path, name, records=[record(64, 1.0), *(record(w, w / 100, **copied) for w in windows)])
    alone = compared(tmp_path, protocol="induction")
    assert alone.header.unit == copied["unit"]
    cell = rows_of(alone)["rope"].cells[1]
    assert (cell.mean, cell.change) == (pytest.approx(2.56), pytest.approx(1.92))
    assert not any(cell.versus_best or cell.verdict for row in alone.rows for cell in row.cells)
    bits = compared(tmp_path, "bpb", protocol="induction", rows=["rope"])
    assert {cell.note for cell in bits.rows[0].cells} == {"no bytes"}


def test_curves_are_bins_averaged_over_seeds(tmp_path):
    flat = positions(slope=3e-3, breaks_at=None, flat=True)
    for seed, one in enumerate((positions(), positions(shift=0.02, breaks_at=129), flat)):
        write_run(tmp_path, seed=seed, records=[one])
    write_run(tmp_path, "alibi", records=[record(8 * T, 0, protocol="positions", note="oom at 512 tokens")])
    comparison = compared(tmp_path, protocol="positions")
    assert [column.window for column in comparison.columns] == [8, 16, 32, 48, 64, 96, 128, 256, 512]
    assert [column.window for column in comparison.columns if not column.shown] == [48, 96]
    assert [column.targets for column in comparison.columns][:3] == [320, 320, 640]
    cell, at = comparison.rows[1].cells[6], comparison.rows[1].curve
    assert (cell.mean, cell.change) == (pytest.approx((1.6 + 1.62 + 1) / 3), pytest.approx(4.22 / 3 - 1.2))
    assert (cell.change_ci95, cell.verdict, cell.versus_best) == (None, None, None)
    assert (at.breaks_at, at.train_length, at.holds) == ((97, 129, None), T, (False, False, True))
    assert {cell.note for cell in comparison.rows[0].cells} == {"oom"}
    extended = {**positions(shift=0.5), "extend": YARN}
    write_run(tmp_path / "one", records=[positions(), record(T, 1.0), extended])
    one = compared(tmp_path / "one", protocol="positions").rows[0]
    assert one.cells[6].change_ci95 == pytest.approx((0.35, 0.45))
    with pytest.raises(UserError, match="nats per token"):
        compared(tmp_path / "one", "bpb", protocol="positions")
    tables = compare_runs(load_runs([tmp_path / "one"]), CompareRequest("all", "ppl"))
    assert [one.header.metric for one in tables] == ["ppl", "nats"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Three encodings, three seeds; `long` lacks 8x."""
    root = tmp_path_factory.mktemp("sweep")
    for name, loss, grown in (("nope", 2.0, 1.0), ("rope", 1.2, 2.5), ("alibi", 1.3, 0.0)):
        for seed in range(3):
            write_run(root, name, seed=seed, losses={1: loss + seed / 100, 8: loss + grown + seed / 100})
    write_run(root, "long", losses={1: 0.5, 16: 0.5})
    return root


def test_rows_in_the_order_asked_for(sweep):
    orders = {None: "alibi long nope rope", "-name": "rope nope long alibi", "1x": "long rope alibi nope"}
    for sort, labels in {**orders, "-change@8x": "rope nope alibi long"}.items():
        assert list(rows_of(compared(sweep, sort=sort))) == labels.split()
    some = {"sort": "change", "rows": ["rope", "nope", "alibi"]}
    for view, labels in ({"rows": ["rope", "al*"]}, "rope alibi"), (some, "alibi nope rope"):
        comparison = compared(sweep, **view)  # columns and ranks of the rows that are shown
        assert list(rows_of(comparison)) == labels.split()
        assert [c.multiple for c in comparison.columns] == [1, 8]
        assert [label for label, word in words(comparison, 1).items() if word == "best"] == ["alibi"]


def test_columns_and_a_baseline(sweep, tmp_path):
    comparison = compared(sweep, columns=[8])
    row = rows_of(comparison)["alibi"]
    assert len(comparison.columns) == len(row.cells) == 1 and row.cells[0].change == pytest.approx(0)
    for n in (64, 512, 128):
        write_run(tmp_path, name=f"T{n}", config={"context_length": n}, facts={"context_length": n})
    named = compared(tmp_path, allow_mixed=True, baseline="rope [context length 64]")
    assert named.header.baseline == "rope [context length 64]"
    with pytest.raises(UserError, match=r"several rows(.|\n)*rope \[context length 128\]"):
        compared(tmp_path, allow_mixed=True, baseline="rope")


def test_no_runs_are_the_users_mistake():
    with pytest.raises(UserError, match="no runs"):
        compare_runs([])


# --- Tidy tables: a line for each cell or seed, a unit a column
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two encodings of two seeds, one extended, and a run of another length; a token has two bytes."""
    root = tmp_path_factory.mktemp("frame")
    for seed in (0, 1):
        for name, far in (("rope", 2.0), ("alibi", 1.2)):
            losses = ((64, 1.0 + seed / 10), (128, far + seed / 10))
            records = [record(window, loss, bytes=[20] * 40) for window, loss in losses]
            if name == "rope":
                records += [record(128, 1.5, bytes=[20] * 40, extend=YARN), positions()]
            write_run(root, name, seed=seed, records=records)
    write_run(root, "nope", status="failed", reason="boom", results=False)
    write_run(root, "t5", facts={"context_length": 32}, records=[record(64, 3.0)])
    return root


def test_a_line_a_cell(folder):
    runs = load_runs([folder])
    lines = cells_table(compare_runs(runs, CompareRequest("all", baseline="alibi")))
    assert len({tuple(line) for line in lines}) == 1  # of all protocols, groups and extensions
    at = {(x["protocol"], x["context length"], x["label"], x["extend"], x["multiple"]): x for x in lines}
    far = at["fixed-target", "64", "rope", None, 2]
    assert (far["loss_nats"], far["change_nats"]) == (pytest.approx(2.05), pytest.approx(1.0))
    assert far["change_bpb"] == pytest.approx(1.0 / 2 / BIT)
    assert (far["seeds"], far["loss_nats_sd"]) == (2, pytest.approx(0.1 / math.sqrt(2)))
    assert far["versus_baseline_nats"] == far["versus_best_nats"] == pytest.approx(0.8)
    assert (far["versus_best"], far["verdict"]) == ("above", "collapsed")
    assert at["fixed-target", "64", "rope+yarn factor=2", "yarn", 2]["loss_nats"] == pytest.approx(1.5)
    assert at["fixed-target", "64", "nope", None, 1]["note"] == "failed"
    assert at["fixed-target", "32", "t5", None, 1]["loss_nats"] == pytest.approx(3.0)
    assert at["positions", None, "rope", None, 2]["change_nats"] == pytest.approx(0.4)
    bits = {line["label"]: line for line in cells_table(compare_runs(runs, CompareRequest(metric="bpb")))}
    assert bits["rope"]["change_bpb"] == pytest.approx(far["change_bpb"])
    assert "change_nats" not in bits["rope"]


def test_a_line_a_seed(folder):
    runs = load_runs([folder])
    lines = seeds_table(runs, CompareRequest("all", rows=["rope", "nope"]))
    at = {(x["protocol"], x["label"], x["extend"], x["seed"], x["multiple"]): x for x in lines}
    far = at["fixed-target", "rope", None, 1, 2]
    assert (far["loss_nats"], far["loss_bpb"]) == (pytest.approx(2.1), pytest.approx(2.1 / 2 / BIT))
    assert (far["change_nats"], far["change_bpb"]) == (pytest.approx(1.0), pytest.approx(0.5 / BIT))
    assert far["change_nats_low"] < 1.0 + 1e-9 and Path(far["run"]).is_dir()
    assert {line["note"] for line in lines if line["label"] == "nope"} == {"failed"}
    assert sum(line["protocol"] == "positions" for line in lines) == 3 * 9  # bins, of two runs and none

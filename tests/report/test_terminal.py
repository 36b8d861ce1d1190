"""What a terminal shows: one screen, no number cut, styles and characters as the stream takes them."""

import io
import re
from pathlib import Path

import pytest
from fake_runs import T, compared, edit_json, needle_records, record, write_run
from rich.cells import cell_len

from posenc.core.console import terminal_width, write
from posenc.core.paths import choice_files
from posenc.report.end_of_run import next_command, show_runs
from posenc.report.formats import render
from posenc.report.runs_table import unfinished_lines
from posenc.report.sentences.shared import shown_columns
from posenc.report.tables import Report
from posenc.report.terminal import terminal_text
from posenc.report.texts import cut
from posenc.results import load_runs


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def table(root, *, width=80, full=False, with_short_lengths=False, **request):
    return render(
        [compared(root, **request)], "table", width, full=full, with_short_lengths=with_short_lengths
    )


def cells_of(text):
    """The words of each line by its first word."""
    return {line.split()[0]: line.split() for line in text.splitlines() if line}


def end_of_run(root, **saved):
    """What is said of runs at the end of their training."""
    stream = io.StringIO()
    show_runs(load_runs([root]), stream, **saved)
    return stream.getvalue()


# --- one run


@pytest.fixture
def one_run(tmp_path):
    records = [record(int(m * T), loss) for m, loss in ((0.5, 1.22), (1, 1.2), (2, 2.4), (8, 3.6))]
    write_run(tmp_path, "rope", records=records)
    return tmp_path


def test_a_run_is_its_facts_then_the_answer_then_a_line_for_each_quantity(one_run):
    lines = end_of_run(one_run).splitlines()
    assert lines[0].startswith("rope | nano 0.8M | T = 64 bytes | sympy")
    assert lines[2] == "Collapses at 8x: +1.20 nats at 2x, +2.40 at 8x."
    assert lines[4].split() == ["context", "32", "64", "=", "T", "128", "512"]
    assert [line.split()[0] for line in lines[5:9]] == ["loss", "change", "95%", "verdict"]


def test_a_run_ends_with_where_it_is_and_what_to_type_next(tmp_path, monkeypatch):
    run = write_run(tmp_path / "runs" / "default", losses={1: 1.2, 8: 2.0})
    edit_json(run / "status.json", overrides=["encoding=rope", "seed=4"])
    monkeypatch.chdir(tmp_path)
    *_, saved, next_line = end_of_run(Path("runs"), saved=Path("runs/default") / run.name).splitlines()
    assert saved == f"saved  runs/default/{run.name}"
    assert next_line == "next   posenc train -m encoding=rope,alibi seed=0,1,2"


def test_a_folder_with_a_blank_is_quoted_in_the_next_command(one_run):
    (run,) = load_runs([one_run])
    saved = Path("my runs/default") / run.name
    assert next_command(run, saved, can_train_longer=False, width=20) == "posenc compare 'my runs'"


@pytest.mark.parametrize("name", ["rope with a very long name", "中文名字很长的一个编码方法"])
@pytest.mark.parametrize("width", [14, 15])
def test_a_name_is_cut_in_its_middle_to_columns_of_the_terminal(name, width):
    shown = cut(name, width)
    assert width - 2 <= cell_len(shown) <= width
    assert (shown[0], shown[-1]) == (name[0], name[-1])


def test_the_second_encoding_of_the_next_command_is_one_that_there_is():
    assert "alibi" in choice_files("encoding")


def test_an_undertrained_run_is_to_be_trained_longer(tmp_path):
    weak = [record(T, 1.8), record(8 * T, 1.8), record(T, 1.81, protocol="trigram")]
    write_run(tmp_path, records=weak)
    text = end_of_run(tmp_path, saved=Path("x"))
    assert "next   train longer: train.tokens=32768000 (now 3276800)" in text
    assert "verdict" not in text


def test_a_window_that_does_not_fit_into_memory_has_its_reason(tmp_path):
    oom = record(8 * T, 0, note="oom at 512 tokens")
    write_run(tmp_path, records=[record(T, 1.2), record(2 * T, 1.9), oom])
    assert re.search(r"loss +1\.200 +1\.900 +oom", end_of_run(tmp_path))


def test_lengths_that_do_not_fit_are_counted(tmp_path):
    many = [record(int(m * T), 1 + m / 10) for m in (0.125, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16)]
    write_run(tmp_path, records=many)
    text = end_of_run(tmp_path)
    assert "more columns: a wider terminal, or --full" in text
    assert "64 = T" in text


# --- several rows


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("protocol", ["fixed-target", "positions", "induction"])
@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_wider_than_the_terminal(sweep, protocol, width, full):
    text = table(sweep, protocol=protocol, width=width, full=full)
    assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("protocol", ["fixed-target", "positions", "induction"])
def test_no_width_cuts_the_loss_at_t_or_the_change_at_the_longest_window(sweep, protocol, width):
    text = table(sweep, protocol=protocol, width=width)
    for row in compared(sweep, protocol=protocol).rows:
        at_t = next(cell for cell in row.cells if cell.multiple == 1)
        assert f"{at_t.mean:.3f}" in text
        assert f"{row.cells[-1].change:+.3f}" in text


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("protocol", ["fixed-target", "positions", "induction"])
def test_in_full_every_width_has_every_loss(sweep, protocol, width):
    comparison = compared(sweep, protocol=protocol)
    text = table(sweep, protocol=protocol, width=width, full=True)
    for row in comparison.rows:
        for index in shown_columns(comparison):
            assert f"{row.cells[index].mean:.3f}" in text


def test_digits_stay_below_each_other_beside_marks(sweep):
    _, table_start, rows = table(sweep).partition("encoding ")
    head, *lines = f"{table_start}{rows}".splitlines()
    end = head.index("1x (T)") + len("1x (T)")
    numbers = [line[:end].rstrip("*~ ") for line in lines if re.match(r"(alibi|rope|learned|weak) ", line)]
    assert len({len(number) for number in numbers}) == 1


def test_everything_has_its_heads_its_seeds_and_intervals(sweep):
    text = table(sweep, full=True, width=200)
    assert "by length, in nats/byte" in text
    assert re.search(r"loss +sd +change +95% CI +sd of change +verdict", text)
    change, low, high = re.search(r"rope +8x .* (\+\d\.\d+) +\[(.*), (.*)\] +±", text).groups()
    assert float(low) < float(change) < float(high)
    assert re.search(r"above the lowest loss  rank +above the lowest change  rank\n", text)
    assert "0 1 2" in text
    assert re.search(r"rope .* \[\+2\.\d+, \+2\.\d+\] p<0\.001  above", text)


def test_an_undertrained_row_has_that_for_a_verdict(sweep):
    assert re.search(r"weak .* undertrained\n", table(sweep))


def test_an_unusual_number_of_seeds_is_said(tmp_path):
    seeds_of_rows = {"rope": 3, "alibi": 3, "nope": 2, "t5": 2}
    for name, seeds in seeds_of_rows.items():
        for seed in range(seeds):
            write_run(tmp_path, name, seed=seed, losses={1: 1.0 + seed / 1000, 8: 2.0 + seed / 1000})
    words = cells_of(table(tmp_path))
    # Of numbers that are as frequent, the smaller one is usual.
    assert {name: "seeds" in words[name] for name in seeds_of_rows} == {
        "rope": True,
        "alibi": True,
        "nope": False,
        "t5": False,
    }


def test_where_all_facts_are_shared_a_table_still_has_a_line_above_it():
    reports = [Report(["one", "two"], "", [], [])] * 2
    assert terminal_text(reports, width=80, color=False).count("one | two") == 2


@pytest.mark.parametrize(
    ("depths", "titles"),
    [
        (1, ["% of facts found at depth 0, by window [95% CI]"]),
        (
            3,
            [
                "alibi: % of facts found, by depth in the text and window [95% CI]",
                "rope: % of facts found, by depth in the text and window [95% CI]",
            ],
        ),
    ],
)
def test_rows_with_a_single_question_share_a_table_of_facts(tmp_path, depths, titles):
    for name, correct in (("rope", 16), ("alibi", 0)):
        records = needle_records({1: (16, 16, 16), 2: (correct, correct, correct)})
        for measured in records:
            measured["needle"] = {key: values[:depths] for key, values in measured["needle"].items()}
        write_run(tmp_path, name, records=records)
    lines = table(tmp_path, protocol="needle").splitlines()
    assert [line for line in lines if "facts found" in line] == titles
    if depths == 1:
        start = lines.index(titles[0])
        assert lines[start + 2].split() == ["alibi", "100", "[81,", "100]", "0", "[0,", "19]"]
        assert lines[start + 3].split() == ["rope", "100", "[81,", "100]", "100", "[81,", "100]"]


def test_the_baseline_is_marked(sweep):
    assert re.search(r"rope .* baseline\n", table(sweep, baseline="rope"))


def test_what_is_missing_is_in_the_row(tmp_path):
    write_run(tmp_path, "rope", losses={1: 1.0, 8: 2.0})
    write_run(tmp_path, "rope", seed=1, status="diverged", reason="nan at step 9", results=False)
    write_run(tmp_path, "alibi", records=[record(64, 1.0), record(512, 0, note="oom at 512 tokens")])
    text = table(tmp_path)
    assert re.search(r"rope .* 1 of 2 diverged\n", text)
    assert re.search(r"alibi +1\.000 .* oom", text)


# --- recall


def test_recall_is_beside_the_losses(recalling):
    rows = cells_of(table(recalling))
    assert rows["encoding"][1:] == ["1x", "(T)", "2x", "8x", "verdict", "recall@T", "@2x", "@4x", "@8x"]
    assert rows["rope"][-5:] == ["collapsed", "97", "62", "14", "5"]


def test_the_longest_window_has_the_ranks_of_recall(recalling):
    rows = cells_of(table(recalling))
    assert rows["hard_alibi"][-5:] == ["100", "99", "98", "97", "*"]
    assert rows["fire"][-1] == "92"  # unresolved


def test_recall_that_was_not_learned_is_in_brackets_and_not_ranked(recalling):
    assert cells_of(table(recalling))["alibi"][-5:] == ["same", "(2)", "(2)", "(1)", "(0)"]


def test_the_level_of_learning_can_be_chosen(recalling):
    assert "(97)  (62)" in table(recalling, protocol="recall", recall_level=98.0)


def test_recall_alone_has_no_verdicts(recalling):
    assert "verdict" not in table(recalling, protocol="recall")


def test_a_wider_terminal_has_the_lengths_that_were_left_out(recalling):
    text = table(recalling, width=100)
    assert " 4x " in text
    assert "wider terminal" not in text


@pytest.mark.parametrize(
    "words",
    [
        "rope 97 [92, 99] 62 [52, 71] below 14 [9, 22] below",
        "fire 100 [96, 100] 97 [92, 99] tied 96 [90, 98] tied",
        "fire 0 7x+",
        "rope 0 1.75x",
        "nope 0 did not learn",
    ],
)
def test_in_full_recall_has_intervals_and_horizons(recalling, words):
    assert words in " ".join(table(recalling, full=True).split())


@pytest.mark.parametrize("full", [False, True])
def test_without_recall_nothing_is_said_of_it(sweep, full):
    assert "recall" not in table(sweep, full=full)


# --- the stream


def test_characters_that_a_stream_lacks_become_escapes(sweep):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    write(table(sweep, full=True), stream)
    stream.seek(0)
    assert "\\xb10.0" in stream.read()


def test_the_width_is_that_of_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert terminal_width() == 60


@pytest.fixture
def no_variables(monkeypatch):
    for variable in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(("color", "expected"), [(True, True), (False, False)])
def test_the_best_is_green_where_colours_belong(sweep, no_variables, color, expected):
    assert ("\x1b[1;32m" in render([compared(sweep)], "table", 80, color)) is expected


def test_no_color_keeps_the_colours_away(sweep, no_variables, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "32m" not in render([compared(sweep)], "table", 80, True)


# --- runs that are not finished


def test_runs_that_are_not_finished_are_listed_with_their_reason_and_log(tmp_path):
    write_run(tmp_path, "rope", name="bad\n[red]", status="failed", reason="disk\x1b[31m full", results=False)
    write_run(tmp_path, "rope", name="busy", status="running", results=False)
    assert unfinished_lines(load_runs([tmp_path])) == [
        rf"bad\n[red]: failed, disk\x1b[31m full (log: {tmp_path}/bad\n[red]/log.txt)",
        f"busy: running, process 1 on here (log: {tmp_path}/busy/log.txt)",
        "to resume: the same command, or what posenc runs shows",
    ]

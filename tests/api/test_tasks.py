"""`data=task`: trained, measured and compared as text is; hand-made programs show what is measured."""

import json
import os
import signal

import pytest
import tiny
import torch
from fake_runs import only_run
from task_answers import CASES, next_character

import posenc as px
from posenc.core.errors import UserError
from posenc.data.tasks import own_tasks
from posenc.data.tasks.instances import PADDING, START
from posenc.results.beside.exact import EXACT
from posenc.running import run_directory

TINY_TASK = (
    *tiny.MODEL,
    *("data=task", "data.task=copy", "context_length=16", "device=cpu", "train.precision=fp32"),
    *("train.tokens=2560", "train.batch_tokens=128", "train.log_every=10"),
    *("eval.lengths=[1x,2x]", "eval.instances=16"),
)
OWN_TASK = '''
from dataclasses import dataclass
from typing import ClassVar

from posenc.data.tasks.base import LETTERS, Draws, Instance, Task


@dataclass(frozen=True, kw_only=True)
class Twice(Task):
    """Ask for every letter twice."""

    name: ClassVar[str] = "twice"
    about: ClassVar[str] = "letters -> each twice"
    source: ClassVar[str] = "none"

    letters: int = 5

    def tokens(self, size: int) -> int:
        return 3 * size + 1

    def instance(self, draws: Draws, size: int) -> Instance:
        string = draws.text(LETTERS[: self.letters], size)
        return Instance((string + ">", "".join(letter * 2 for letter in string)))
'''


def answers_of(directory):
    """Return the counts of each record of a run, by window."""
    results = json.loads((directory / "results.json").read_text())
    return {record["window"]: record["exact"] for record in results["records"]}


@pytest.fixture
def train_task(posenc):
    """`posenc train data=task data.task=copy` at a tiny size."""
    return lambda *overrides: posenc("train", *TINY_TASK, "encoding=rope", *overrides)


# --- hand-made programs


class Solver:
    """A program that answers a task, given as a function from tokens to logits."""

    def __init__(self, case, change=lambda row, place, character: character):
        self.case = case
        self.change = change

    def __call__(self, tokens):
        logits = torch.zeros(*tokens.shape, 256)
        for row, ids in enumerate(tokens.tolist()):
            text = ""
            for place, token in enumerate(ids):
                if token == PADDING:
                    break
                text += "" if token == START else chr(token)
                character = next_character(self.case, text)
                if character is not None:
                    logits[row, place, ord(self.change(row, place, character))] = 10.0
        return logits


def settings_of(case, **overrides):
    """Return what measures a program by a task of this case at T = 16."""
    name, options, _ = CASES[case]
    task = {f"data.options.{option}": value for option, value in options.items()}
    return {
        "name": case,
        "data": "task",
        "data.task": name,
        "context_length": 16,
        "eval.lengths": ["1x", "2x", "4x", "8x"],
        "eval.instances": 24,
        "device": "cpu",
        **task,
        **overrides,
    }


def measured(solver, **overrides):
    """Return the answers of a program by window, at T = 16."""
    return answers_of(px.evaluate(solver, **settings_of(solver.case, **overrides)).path)


@pytest.mark.parametrize("case", CASES)
def test_a_program_that_solves_a_task_is_wholly_right_at_every_length(working_folder, case):
    answers = measured(Solver(case))
    assert [*answers] == [16, 32, 64, 128]
    assert all(counts["right"] == counts["instances"] for counts in answers.values())
    assert all(counts["tokens_right"] == counts["tokens"] for counts in answers.values())


def test_answers_of_other_instances_are_chance(working_folder):
    """Copies of 16 letters: one of 16 letters fits, and no whole answer."""

    class Shuffled(Solver):
        def __call__(self, tokens):
            return super().__call__(tokens).roll(1, dims=0)

    counts = measured(Shuffled("copy"))[128]
    assert counts["right"] == 0
    ends = counts["instances"]  # the last token of every answer is the same mark
    assert (counts["tokens_right"] - ends) / (counts["tokens"] - ends) == pytest.approx(1 / 16, abs=0.03)


def test_a_loss_of_a_token_outside_the_answer_does_not_count(working_folder):
    """Not even an infinite one: outside answers this program is sure of a token that never comes."""

    class CertainElsewhere(Solver):
        def __call__(self, tokens):
            logits = super().__call__(tokens)
            is_answer = logits.any(dim=-1)
            logits[~is_answer] = -torch.inf
            logits[~is_answer, 1] = 0.0
            return logits

    run = px.evaluate(CertainElsewhere("addition"), **settings_of("addition"))
    assert all(0 < record["nats"] < 0.1 for record in run.records)


def test_one_wrong_token_makes_an_answer_wrong(working_folder):
    solver = Solver("copy", lambda row, place, character: "z" if place == 12 else character)
    counts = measured(solver)[16]
    assert counts["right"] == 0
    assert counts["tokens_right"] == counts["tokens"] - counts["instances"]


def test_a_program_goes_on_from_its_own_answers(working_folder):
    answers = measured(Solver("reverse"), **{"eval.generate": True})
    assert all(counts["generated_right"] == counts["instances"] for counts in answers.values())


def test_whole_answers_are_the_same_given_and_generated(working_folder):
    """Every third instance has a mistake early in its answer; behind it a parity's own tokens go wrong."""

    def change(row, place, character):
        return {"0": "1", "1": "0"}[character] if row % 3 == 0 and place == 10 else character

    counts = measured(Solver("parity", change), **{"eval.generate": True})[16]
    assert 0 < counts["right"] < counts["instances"]
    assert counts["generated_right"] == counts["right"]


def test_a_mistake_changes_what_a_model_says_after_it(working_folder):
    """This program repeats the token before, so one wrong token makes all that follow wrong."""

    class Repeats(Solver):
        def __call__(self, tokens):
            logits = super().__call__(tokens)
            behind = (tokens == ord("z")).cumsum(dim=1) > 0
            logits[behind] = 0.0
            logits[..., ord("z")] += 20.0 * behind
            return logits

    solver = Repeats("copy", lambda row, place, character: "z" if place == 10 else character)
    counts = measured(solver, **{"eval.generate": True})[16]
    assert counts["generated_tokens_right"] < counts["tokens_right"]


# --- runs


def test_a_run_of_a_task_is_measured_by_whole_answers(train_task, working_folder):
    result = train_task()
    assert result.code == 0, result.err
    assert "learned" in result.out
    assert only_run(working_folder / "runs").name.startswith("copy-rope-")
    assert [*answers_of(only_run(working_folder / "runs"))] == [16, 32]


def test_the_same_line_finds_the_run_again(train_task, working_folder):
    train_task()
    assert "already finished" in train_task().err
    assert only_run(working_folder / "runs")


@pytest.mark.parametrize(
    "override",
    ["data.task=reverse", "data.lengths=fixed", "data.options.letters=5", "data.options.unique=true"],
)
def test_another_task_or_option_is_another_run(train_task, working_folder, override):
    train_task()
    train_task(override)
    assert len([*(working_folder / "runs" / "default").iterdir()]) == 2


def test_an_option_that_says_its_default_is_the_same_run(train_task, working_folder):
    train_task()
    train_task("data.options.letters=16")
    assert only_run(working_folder / "runs")


def test_a_training_that_was_stopped_goes_on_bit_for_bit(train_task, working_folder, monkeypatch):
    train_task("runs_dir=whole")

    def interrupt(directory, metrics):
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(run_directory, "append_metrics", interrupt)
        assert train_task("runs_dir=parts").code == 130
    assert "continuing at step 1" in train_task("runs_dir=parts").err
    weights = "checkpoints/step-00000020/model.safetensors"
    whole = only_run(working_folder / "whole") / weights
    assert (only_run(working_folder / "parts") / weights).read_bytes() == whole.read_bytes()


def test_a_dry_run_writes_nothing(train_task, working_folder):
    result = train_task("--dry-run")
    assert result.code == 0, result.err
    assert not (working_folder / "runs").exists()


def test_validation_instances_are_others(train_task, working_folder):
    train_task()
    train_task("eval.split=validation")
    results = json.loads((only_run(working_folder / "runs") / "results.json").read_text())
    hashes = {record["split"]: record["targets_hash"] for record in results["records"]}
    assert hashes["validation"] != hashes["test"]


def test_tasks_are_tables_of_their_own(train_task, posenc):
    train_task()
    train_task("data.task=reverse")
    compared = posenc("compare", "runs").out
    assert "copy" in compared
    assert "reverse" in compared
    assert compared.count("learned  @1x") == 2


def test_a_schedule_begins_with_short_instances(train_task):
    assert train_task("train.length_schedule=[[0.5,8],[0.5,16]]").code == 0


# --- what is refused


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["eval.protocols=[fixed-target]"], "measures text, and a task has none"),
        (["tokenizer=bpe"], "has tokens of its own"),
        (["context_length=4", "eval.lengths=[1x]", "data.task=mqar"], "no instance of mqar fits into it"),
        (["context_length=512", "data.options.unique=true"], "the alphabet of copy ends"),
        (["data.options.letters=1"], "a whole number from 2 to 26"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(train_task, working_folder, overrides, said):
    result = train_task("train.batch_tokens=512", *overrides)
    assert result.code == 2
    assert said in result.err
    assert not (working_folder / "runs").exists()


def test_whole_answers_are_refused_on_text(train):
    result = train("encoding=rope", "eval.protocols=[exact]")
    assert result.code == 2
    assert "measures answers of a task, not text" in result.err


def test_planted_pairs_are_refused_in_a_task(train_task):
    plant = "data.plant={share:0.5,pairs:1,cue:1,alphabet:4,weight:1}"
    assert "is planted in text" in train_task(plant).err


# --- a task of one's own


@pytest.fixture
def own_task(working_folder):
    (working_folder / "twice.py").write_text(OWN_TASK)


def test_a_task_of_ones_own_is_one_file(own_task, train_task, working_folder):
    result = train_task("data.task=./twice.py", "data.options.letters=3")
    assert result.code == 0, result.err
    assert only_run(working_folder / "runs").name.startswith("twice")


def test_another_text_of_its_file_is_another_run(own_task, train_task, working_folder):
    train_task("data.task=./twice.py")
    (working_folder / "twice.py").write_text(OWN_TASK.replace("letter * 2", "letter + letter"))
    train_task("data.task=./twice.py")
    assert len([*(working_folder / "runs" / "default").iterdir()]) == 2


@pytest.mark.slow
def test_nothing_imports_a_file_because_a_run_names_it(own_task, train_task, working_folder):
    """In a process of its own: this one knows the task already."""
    train_task("data.task=./twice.py")
    run = only_run(working_folder / "runs")
    result = tiny.finished(tiny.start("eval", f"run={run}", "eval.lengths=[4x]", cwd=working_folder))
    assert result.code == 2
    assert "plugins=[twice.py]" in result.err


def test_it_is_measured_again_with_its_file_as_a_plug_in(own_task, train_task, posenc, working_folder):
    train_task("data.task=./twice.py")
    run = only_run(working_folder / "runs")
    result = posenc("eval", f"run={run}", "eval.lengths=[4x]", "plugins=[twice.py]")
    assert result.code == 0, result.err
    assert 64 in answers_of(run)


def test_its_file_may_have_an_apostrophe_in_its_name(working_folder, train_task):
    (working_folder / "it's.py").write_text("x = 1\n")
    assert "data.task=./it's.py: has no task" in train_task("data.task=./it's.py").err


def test_a_file_without_a_task_is_refused(working_folder, train_task):
    (working_folder / "empty.py").write_text("x = 1\n")
    assert "has no task" in train_task("data.task=./empty.py").err


def test_a_task_may_be_derived_from_one_of_posencs(working_folder, train_task):
    text = "from posenc.data.tasks.copy import Copy\n\n\nclass Again(Copy):\n    name = 'again'\n"
    (working_folder / "again.py").write_text(text)
    result = train_task("data.task=./again.py")
    assert result.code == 0, result.err
    assert only_run(working_folder / "runs").name.startswith("again")


def test_a_task_with_the_name_of_one_of_posencs_is_refused(working_folder, train_task):
    (working_folder / "mine.py").write_text(OWN_TASK.replace('"twice"', '"copy"'))
    result = train_task("data.task=./mine.py")
    assert result.code == 2
    assert "has the name of one of posenc's, copy" in result.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("letter * 2", "letter * 9"), "has more tokens than tokens("),
        (('">"', '"→"'), "'→' is not one of the 256 characters"),
        (('(string + ">", "".join(letter * 2 for letter in string))', "(string,)"), "has no answer"),
        (('"".join(letter * 2 for letter in string)', '""'), "has an empty answer"),
        (("3 * size + 1", "4"), "does not grow with the size"),
    ],
)
def test_a_task_that_is_not_what_it_declares_is_named(working_folder, train_task, change, message):
    (working_folder / "twice.py").write_text(OWN_TASK.replace(*change))
    result = train_task("data.task=./twice.py")
    assert result.code in (1, 2)
    assert message in result.err
    assert "fault of posenc" not in result.err


def test_info_tells_an_alphabet_that_ends_from_a_window_that_is_too_short(posenc):
    line = ["data", "info", "data=task", "data.task=copy", "data.options.unique=true"]
    assert "the alphabet of copy ends" in posenc(*line, "context_length=1024").err
    assert "no instance of copy fits" in posenc(*line, "context_length=2").err


def test_options_of_tasks_are_printed_with_the_configuration(posenc):
    result = posenc("train", "--cfg", "job", "data=task", "data.task=copy", "data.options.unique=true")
    assert result.code == 0, result.err
    assert "unique: true" in result.out


def test_info_shows_three_instances(posenc):
    result = posenc("data", "info", "data=task", "data.task=copy", "context_length=16")
    shown = [line for line in result.out.splitlines() if "[" in line and ">" in line]
    assert len(shown) == 3
    assert result.code == 0


@pytest.mark.parametrize("name", own_tasks())
def test_info_says_what_every_task_asks(posenc, name):
    document = json.loads(posenc("data", "info", "data=task", f"data.task={name}", "--json").out)
    assert document["about"]
    assert len(document["instances"]) == 3


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UserError, match="did you mean: reverse"):
        px.train(data="task", **{"data.task": "revers"})


def test_exact_is_the_protocol_of_tasks_alone():
    from posenc.evaluation.protocols import find_protocol, protocol_names

    assert [name for name in protocol_names() if find_protocol(name).of_tasks] == [EXACT.protocol]

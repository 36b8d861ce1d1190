"""Tasks: every answer is recomputed by another route, and no test instance is trained on."""

import inspect
import re
from dataclasses import dataclass

import numpy as np
import pytest
from task_answers import CASES, INTERLEAVED

from posenc.core.errors import RunError, UserError
from posenc.data.sources import named_data, task_instances
from posenc.data.task_windows import TaskSampler
from posenc.data.tasks import find_task, own_tasks
from posenc.data.tasks.base import Instance, Task, draws_of_rows
from posenc.data.tasks.instances import PADDING, START, TaskInstances, encoded, split_of
from posenc.settings.tree import DataSettings

PAPER = re.compile(r"\d{4}\.\d{5}")  # on arXiv

SIZES = (2, 3, 5, 8, 13, 21)


def instances_of(name, **options):
    return TaskInstances(find_task(name)(**options), "uniform")


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_another_route(case):
    name, options, answer_of = CASES[case]
    for size in SIZES:
        task = find_task(name)(**options)
        for draws in draws_of_rows(20, 4, size):
            instance = task.instance(draws, size)
            known = instance.text if name in INTERLEAVED else instance.given
            assert instance.answer == answer_of(known), instance


@pytest.mark.parametrize("case", CASES)
def test_no_instance_is_longer_than_its_size_says(case):
    name, options, _ = CASES[case]
    task = find_task(name)(**options)
    for size in range(max(2, task.smallest), 40):
        instances = [task.instance(draws, size) for draws in draws_of_rows(10, 3, size)]
        assert max(len(instance.text) for instance in instances) <= task.tokens(size)


@pytest.mark.parametrize("case", CASES)
def test_every_character_is_a_token(case):
    name, options, _ = CASES[case]
    for instance in instances_of(name, **options).held_out("test", 10, 20):
        tokens = encoded([instance], len(instance.text)).tokens[0]
        assert tokens[0] == START
        assert bytes(tokens[1:].tolist()).decode("latin-1") == instance.text
        assert PADDING not in tokens
        assert START not in tokens[1:]


@dataclass(frozen=True, kw_only=True)
class Writes(Task):
    """Repeat one character."""

    name = "writes"
    character: str

    def tokens(self, size):
        return size + 2

    def instance(self, draws, size):
        digits = "".join(str(draws.below(10)) for _ in range(size))
        return Instance((digits, 2 * self.character))


@pytest.mark.parametrize(("character", "meaning"), [("\x00", "the padding"), ("\x01", "the start mark")])
def test_the_tokens_of_a_window_are_no_characters_of_an_instance(character, meaning):
    with pytest.raises(RunError, match=rf"is {meaning} of a window; characters are U\+0002 to U\+00FF"):
        TaskInstances(Writes(character=character), "uniform").held_out("test", 8, 1)


@pytest.mark.parametrize("character", ["\x02", "\xff"])
def test_all_other_bytes_are_characters(character):
    (instance,) = TaskInstances(Writes(character=character), "uniform").held_out("test", 8, 1)
    assert instance.answer == 2 * character


def test_numbers_are_added_that_python_itself_does_not_write():
    """It writes no number of more than 4300 digits."""
    size = 5000
    task = find_task("addition")(hints=False)
    (draws,) = draws_of_rows(1, 4, size)
    instance = task.instance(draws, size)
    first, second = (number[::-1] for number in instance.given.rstrip(">=").split("+"))
    low = (int(first[-4000:]) + int(second[-4000:])) % 10**4000
    assert int(instance.answer[:4000][::-1]) == low
    assert len(instance.text) == task.tokens(size)


def test_each_of_posencs_tasks_has_a_second_route():
    assert {name for name, _, _ in CASES.values()} == set(own_tasks())


def test_the_tasks_are_the_files_of_the_folder():
    assert own_tasks() == (
        *("addition", "copy", "dyck", "flip_flop", "mqar", "parity", "previous", "reverse", "s5", "sort"),
    )


@pytest.mark.parametrize("name", own_tasks())
def test_the_source_of_a_task_is_every_paper_of_its_text(name):
    task = find_task(name)
    text = inspect.getmodule(task).__doc__
    assert set(PAPER.findall(task.source)) == set(PAPER.findall(text))


def test_unique_copies_have_no_letter_twice():
    for instance in instances_of("copy", unique=True).held_out("test", 60, 10):
        assert len(set(instance.given)) == 61


def test_brackets_are_never_open_deeper_than_depth():
    for instance in instances_of("dyck", depth=3).held_out("test", 50, 30):
        depth = 0
        for bracket in instance.given:
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(bracket, 0)
            assert depth <= 3


# --- splits


@pytest.mark.parametrize("name", own_tasks())
def test_what_is_trained_on_belongs_to_the_training(name):
    task = instances_of(name)
    trained = [instance for step in range(4) for instance in task.training_batch(32, 32, seed=0, step=step)]
    assert {split_of(instance) for instance in trained} == {"train"}


def test_no_test_instance_is_trained_on_even_where_there_are_few():
    """Copies of two letters of an alphabet of four: 16 instances, which 1000 draws would all see."""
    task = TaskInstances(find_task("copy")(letters=4), "fixed")
    tested = {instance.text for instance in task.held_out("test", 2, 20)}
    trained = {i.text for step in range(20) for i in task.training_batch(50, 6, seed=1, step=step)}
    assert trained
    assert not tested & trained


def test_validation_and_test_have_no_instance_in_common():
    task = instances_of("copy")
    validation = {instance.text for instance in task.held_out("validation", 4, 200)}
    assert not validation & {instance.text for instance in task.held_out("test", 4, 200)}


# --- training


def test_a_row_does_not_depend_on_how_many_there_are():
    task = instances_of("mqar")
    assert task.training_batch(4, 64, seed=0, step=7) == task.training_batch(9, 64, seed=0, step=7)[:4]


def test_a_step_is_another_one_with_another_seed():
    task = instances_of("copy")
    assert task.training_batch(4, 64, seed=0, step=7) != task.training_batch(4, 64, seed=1, step=7)


def test_sizes_are_uniform_up_to_the_largest_that_fits():
    task = instances_of("reverse")
    sizes = [len(i.given) - 1 for step in range(20) for i in task.training_batch(60, 32, seed=0, step=step)]
    counts = np.bincount(sizes)[1:]
    assert len(counts) == 15
    assert counts.min() > 40  # of 80 in the mean


def test_fixed_lengths_have_one_size():
    task = TaskInstances(find_task("reverse")(), "fixed")
    assert {len(instance.given) for instance in task.training_batch(30, 32, seed=0, step=0)} == {16}


def test_only_answers_count_in_the_loss():
    batch = TaskSampler(instances_of("copy"), 32, seed=0).batch(0, 8)
    for row in range(8):
        text = bytes(batch.targets[row][batch.weights[row] > 0].tolist()).decode()
        whole = bytes(batch.targets[row].tolist()).decode()
        assert whole.rstrip("\0").endswith(">" + text)


def test_the_loss_is_a_mean_over_the_answers_tokens():
    batch = TaskSampler(instances_of("copy"), 32, seed=0).batch(0, 8)
    assert batch.weights.mean() == pytest.approx(1)


@pytest.mark.parametrize("window", [16, 33, 64, 100, 512])
@pytest.mark.parametrize("name", own_tasks())
def test_the_largest_size_is_the_last_that_fits(name, window):
    task = instances_of(name)
    largest = task.largest_size(window)
    assert task.task.tokens(largest) <= window < task.task.tokens(largest + 1)


def test_a_window_beyond_the_alphabet_has_no_instance():
    assert instances_of("copy", unique=True).largest_size(64) == 31
    assert instances_of("copy", unique=True).largest_size(512) is None


def test_draws_go_on_beyond_the_first_block():
    (draws,) = draws_of_rows(1, 5, 6)
    (again,) = draws_of_rows(1, 5, 6)
    numbers = [draws.below(1000) for _ in range(2000)]
    assert numbers == [again.below(1000) for _ in range(2000)]
    assert len(set(numbers)) > 800
    assert numbers[256:512] != numbers[:256]


def test_draws_of_another_row_are_others():
    first, second = draws_of_rows(2, 1, 2)
    assert [first.below(10**6) for _ in range(600)] != [second.below(10**6) for _ in range(600)]


# --- settings


def data(**values):
    return DataSettings.model_validate(
        {"name": "task", "source": "task", "task": "copy", "lengths": "uniform", "options": {}, **values}
    )


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"task": "cpoy"}, "there is no such task"),
        ({"lengths": "random"}, "not one of its choices"),
        ({"options": {"letters": 1}}, "too small"),
        ({"options": {"letters": 27}}, "too large"),
        ({"options": {"letters": 8, "unique": True}}, "letters=8: unique=true draws from all"),
        ({"task": "s5", "options": {"modulus": 7}}, "modulus=7: is for group=mod_sum"),
        (
            {"task": "s5", "options": {"group": "mod_sum", "elements": 100}},
            "elements=100: more than there are modulo modulus=5",
        ),
        ({"options": {"letters": 2.5}}, "letters"),
        ({"options": {"unique": 1}}, "unique"),
        ({"options": {"size": 1}}, "there is no such parameter"),
    ],
)
def test_wrong_settings_are_refused(values, problem):
    with pytest.raises(UserError, match=problem):
        task_instances(data(**values))


def test_a_modulus_below_the_default_of_elements_is_enough():
    task = task_instances(data(task="s5", options={"group": "mod_sum", "modulus": 3})).task
    assert task.modulus == 3


def test_an_error_of_a_task_names_the_task():
    with pytest.raises(UserError, match=r"data\.task=copy: letters=8"):
        task_instances(data(options={"letters": 8, "unique": True}))


def test_bounds_are_said():
    with pytest.raises(UserError) as refused:
        task_instances(data(options={"letters": 99}))
    assert "from 2 to 26" in str(refused.value)


def test_whole_numbers_may_be_written_as_yaml_reads_them():
    assert task_instances(data(options={"letters": 4.0})).task.letters == 4


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "copy"),
        ({"options": {"unique": True}}, "copy unique=true"),
        ({"options": {"unique": False}}, "copy"),
        ({"lengths": "fixed", "options": {"letters": 4}}, "copy fixed letters=4"),
    ],
)
def test_a_tasks_name_says_what_differs_from_its_defaults(values, name):
    assert named_data(data(**values)).name == name

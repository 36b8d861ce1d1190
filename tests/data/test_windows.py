"""Training windows lie inside documents, come equally often, and depend on seed and step alone."""

import numpy as np
import pytest
from pair_stores import SEED, bytes_store, plant_for, store_of

from posenc.data import PlantedSampler, WindowSampler

LENGTHS = [3, 40, 9, 10, 100, 2]  # of the training documents
T = 9
STARTS_THAT_FIT = 31 + 1 + 91  # in the documents of 40, 10 and 100 tokens


@pytest.fixture(scope="module")
def many_windows():
    """The tokens of a training document number their places in the store."""
    return WindowSampler(store_of(LENGTHS), T, 0).batch(0, 50_000)


def test_a_batch_has_inputs_and_targets_of_whole_numbers(many_windows):
    for array in (many_windows.inputs, many_windows.targets):
        assert array.shape == (50_000, T)
        assert array.dtype == np.int64


def test_targets_are_the_inputs_one_token_on(many_windows):
    assert (np.diff(many_windows.inputs, axis=1) == 1).all()
    assert (many_windows.targets == many_windows.inputs + 1).all()


def test_windows_lie_inside_training_documents(many_windows):
    split = store_of(LENGTHS).splits["train"]
    document = np.searchsorted(split.starts, many_windows.inputs[:, 0], side="right") - 1
    assert (many_windows.targets[:, -1] < split.starts[document] + split.lengths[document]).all()


def test_every_start_that_fits_comes_equally_often(many_windows):
    split = store_of(LENGTHS).splits["train"]
    starts = {start + i for start, n in zip(split.starts, LENGTHS, strict=True) for i in range(max(0, n - T))}
    values, counts = np.unique(many_windows.inputs[:, 0], return_counts=True)
    assert set(values.tolist()) == starts
    assert len(starts) == STARTS_THAT_FIT
    expected = 50_000 / len(starts)
    assert abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_a_batch_is_the_same_on_every_machine_forever():
    batch = WindowSampler(store_of(LENGTHS), T, 0).batch(0, 6)
    assert batch.inputs[:, 0].tolist() == [565, 652, 506, 584, 587, 632]


def test_plain_windows_have_neither_weights_nor_kinds(many_windows):
    assert many_windows.weights is None
    assert many_windows.kinds is None


# --- What a window depends on


@pytest.fixture(params=["text", "planted"])
def sampler_of(request):
    """Make a sampler of a seed, with and without planted pairs."""
    store = bytes_store()
    if request.param == "text":
        return lambda seed: WindowSampler(store, 33, seed)
    plant = plant_for(store, share=1.0)
    return lambda seed: PlantedSampler(store, 33, seed, plant)


def test_a_window_depends_on_seed_step_and_row_alone(sampler_of):
    sampler = sampler_of(SEED)
    eight = sampler.batch(3, 8)
    sampler.batch(1, 64)
    two = sampler_of(SEED).batch(3, 2)
    assert np.array_equal(two.inputs, eight.inputs[:2])
    assert np.array_equal(two.targets, eight.targets[:2])


def test_kinds_and_weights_depend_on_seed_step_and_row_alone():
    store = bytes_store()
    plant = plant_for(store, share=1.0)
    eight = PlantedSampler(store, 33, SEED, plant).batch(3, 8)
    two = PlantedSampler(store, 33, SEED, plant).batch(3, 2)
    assert np.array_equal(two.kinds, eight.kinds[:2])
    assert np.array_equal(two.weights, eight.weights[:2])


def test_another_seed_has_other_windows(sampler_of):
    batch, other = sampler_of(SEED).batch(3, 8), sampler_of(SEED + 1).batch(3, 8)
    assert not np.array_equal(batch.inputs, other.inputs)


def test_another_step_has_other_windows(sampler_of):
    sampler = sampler_of(SEED)
    assert not np.array_equal(sampler.batch(3, 8).inputs, sampler.batch(4, 8).inputs)


@pytest.mark.parametrize(("seed", "step"), [(SEED + 1, 3), (SEED, 4)])
def test_another_seed_or_step_plants_elsewhere(seed, step):
    store = bytes_store()
    plant = plant_for(store, share=1.0)
    batch = PlantedSampler(store, 33, SEED, plant).batch(3, 8)
    other = PlantedSampler(store, 33, seed, plant).batch(step, 8)
    assert not np.array_equal(batch.kinds, other.kinds)

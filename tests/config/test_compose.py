"""Composition through YAML that is read once: the same configuration as Hydra's own."""

import os

import hydra
import pytest
from omegaconf import OmegaConf

from posenc.config import hydra_adapter
from posenc.config.compose import initialize_hydra

# Hydra's lists of the overrides: posenc does not read them
LISTS = ("overrides", "job")


def plain(config):
    """Return a composed configuration as plain data, without Hydra's lists of the overrides."""
    data = OmegaConf.to_container(config)
    return data | {"hydra": {key: value for key, value in data["hydra"].items() if key not in LISTS}}


@pytest.mark.parametrize(
    "overrides",
    [
        ["encoding=alibi", "seed=3"],
        ["encoding=alibi", "seed=4"],
        ["experiment=recall", "encoding.base=500", "encoding=rope"],
        ["~encoding", "++encoding.name='mine'", "+encoding.strength=1.5"],
        ["hydra.mode=RUN", "+data.more=[1,2]", "~train.lr"],
        ["model=nano", "model.d_model=32", "hydra/launcher=basic", "hydra.verbose=true"],
    ],
    ids=" ".join,
)
def test_it_is_what_hydra_composes(overrides):
    with initialize_hydra(None):
        expected = hydra.compose("train", overrides, return_hydra_config=True)
        assert plain(hydra_adapter.compose("train", overrides)) == plain(expected)


@pytest.mark.parametrize(
    "overrides",
    [
        ["encoding=ropes"],
        ["encoding=alibi", "sed=3"],
        ["seed=0", "seed"],
        ["encodings=rope"],
        ["seed=1,2"],
        ["+encoding=rope"],
        ["~seed=5"],
        ["++encoding=rope"],
        ["encoding@data=rope"],
    ],
    ids=" ".join,
)
def test_it_is_refused_as_hydra_refuses_it(overrides):
    with initialize_hydra(None):
        with pytest.raises(Exception) as expected:
            hydra.compose("train", overrides, return_hydra_config=True)
        with pytest.raises(type(expected.value)) as caught:
            hydra_adapter.compose("train", overrides)
    assert str(caught.value) == str(expected.value)


def test_a_configuration_may_be_changed():
    with initialize_hydra(None):
        hydra_adapter.compose("train", ["encoding=rope"]).seed = 17
        assert hydra_adapter.compose("train", ["encoding=rope"]).seed == 0


def test_a_yaml_that_changes_is_read_anew(tmp_path, monkeypatch):
    path = tmp_path / "train.yaml"
    path.write_text("seed: 1\n")
    monkeypatch.setattr(hydra_adapter, "conf_dir", lambda: tmp_path)
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        assert hydra_adapter.compose("train", []).seed == 1
        path.write_text("seed: 2\n")
        os.utime(path, ns=(0, 0))  # whatever the resolution of the file system's clock
        assert hydra_adapter.compose("train", []).seed == 2

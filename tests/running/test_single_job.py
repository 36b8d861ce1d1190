"""A single job has what Hydra gives a job, on the configuration that was checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from posenc.core.paths import conf_dir

Posenc = Callable[..., tiny.Result]
CALLBACK = """
import os
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback

class Tells(Callback):
    def tell(self, word, config):
        with open("told.txt", "a") as file:
            print(word, config.encoding.name, os.environ.get("OF_THE_JOB", "-"), file=file)

    def on_run_start(self, config, **_):
        self.tell("run-start", config)

    def on_job_start(self, config, **_):
        self.tell(f"job-start {HydraConfig.get().job.name}", config)

    def on_job_end(self, config, job_return, **_):
        self.tell(f"job-end {job_return.status.name}", config)

    def on_run_end(self, config, **_):
        self.tell("run-end", config)
"""


def test_callbacks_and_the_environment_are_hydras(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "tells_all.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(place)
    words = ("+hydra.callbacks.mine._target_=tells_all.Tells", "+hydra.job.env_set.OF_THE_JOB=here")
    assert train("encoding=alibi", *words).code == 0
    assert (place / "told.txt").read_text().splitlines() == [
        "run-start alibi -",
        "job-start posenc alibi here",
        "job-end COMPLETED alibi -",
        "run-end alibi -",
    ]


def test_a_setting_may_refer_to_hydras_own(train: Posenc, place: Path) -> None:
    words = ("runs_dir=${hydra:runtime.cwd}/here", "name=${hydra:job.name}-${encoding.name}")
    assert train("encoding=rope", *words).code == 0
    (run,) = (place / "here" / "default").glob("[!.]*")
    assert run.name.startswith("posenc-rope-")
    assert f"runs_dir: {place}/here" in (run / "config.yaml").read_text()


def test_what_hydra_does_not_know_before_is_refused_and_no_text(train: Posenc, place: Path) -> None:
    for word in ("runtime.output_dir", "job.num", "job.nothing"):
        refused = train(f"runs_dir=${{hydra:{word}}}/runs")
        assert refused.code == 2 and f"hydra.{word} is not known" in refused.err, refused.err
    refused = train("-m", "name=x-${hydra:mode}", "seed=0,1")  # it is another in the jobs' processes
    assert refused.code == 2 and "hydra.mode is not known" in refused.err, refused.err
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["+hydra.callbacks.mine._target_=nowhere.Nothing"], "nowhere"),
        (["hydra.job_logging.version=9"], "hydra: "),
        (["hydra.run.dir=/dev/null/x"], "/dev/null/x"),
    ],
    ids=lambda given: given if isinstance(given, str) else " ".join(given),
)
def test_what_hydra_cannot_do_is_wrong_input(train: Posenc, place: Path, words: list[str], says: str) -> None:
    refused = train(*words)
    assert refused.code == 2 and says in refused.err and "Traceback" not in refused.err
    assert len(refused.err.splitlines()) < 5 and not list(place.iterdir())


def test_a_file_of_ones_own_has_a_name_of_its_own(train: Posenc, place: Path) -> None:
    """Hydra would take posenc's and say nothing."""
    shipped = conf_dir() / "encoding" / "rope.yaml"
    mine = place / "conf" / "encoding" / "rope.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text(shipped.read_text().replace("10000", "77"))
    refused = train("--config-dir", "conf", "encoding=rope")
    assert refused.code == 2 and "encoding/rope.yaml has the name" in refused.err, refused.err
    mine.rename(mine.with_name("my_rope.yaml"))
    (place / "conf" / "encoding" / "alibi.yaml").write_bytes((shipped.parent / "alibi.yaml").read_bytes())
    assert train("--config-dir", "conf", "encoding=my_rope").code == 0
    (run,) = (place / "runs" / "default").glob("[!.]*")
    assert "base: 77" in (run / "config.yaml").read_text()

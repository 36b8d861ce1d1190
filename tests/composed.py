"""Settings of `posenc train` for tests that build a model without a run."""

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.running.model_parts import check_parts


def train_settings(*overrides):
    """Return composed and checked settings, as a run stores them."""
    (job,) = compose_jobs("train", parse(list(overrides))).jobs
    return check_parts(job.settings)

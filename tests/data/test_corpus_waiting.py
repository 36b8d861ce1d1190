"""Who waits is told for what, and can be stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from posenc.core.atomic_files import file_lock
from posenc.data import waiting
from posenc.data.tokenizer_choice import _train


class StoppedError(Exception):
    pass


@pytest.fixture
def stopped_soon() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedError

    before = signal.signal(signal.SIGUSR1, stop)
    timer = threading.Timer(0.3, partial(os.kill, os.getpid(), signal.SIGUSR1))
    timer.start()
    yield
    timer.join()
    signal.signal(signal.SIGUSR1, before)


def test_what_a_library_returns_or_raises_comes_back() -> None:
    assert waiting.heard(sum, iter([1, 2, 3]), "adding") == 6
    with pytest.raises(TypeError, match="unsupported operand"):
        waiting.heard(sum, ["a", "b"], "adding")


@pytest.mark.usefixtures("stopped_soon")
def test_a_signal_is_heard_while_a_library_works() -> None:
    def deaf(items: Iterable[int]) -> None:
        release.wait(60)

    release = threading.Event()
    began = time.monotonic()
    with pytest.raises(StoppedError):
        waiting.heard(deaf, [], "waiting")
    release.set()
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("stopped_soon")
def test_a_tokenizer_that_is_stopped_reads_no_further() -> None:
    def endless() -> Iterator[str]:
        while True:
            read.append(time.monotonic())
            time.sleep(0.01)
            yield "a text"

    read: list[float] = []
    with pytest.raises(StoppedError):
        waiting.heard(partial(_train, 300), endless(), "training")
    so_far = len(read)
    time.sleep(0.2)
    assert 0 < len(read) <= so_far + 1


def test_long_work_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SECONDS_BETWEEN_LINES", 0.05)
    waiting.heard(lambda _: time.sleep(0.3), [], "training the tokenizer")
    assert "training the tokenizer: 0 seconds so far" in capsys.readouterr().err


def test_a_second_process_is_told_what_it_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "made" / "key.lock"
    path.parent.mkdir()
    order = []

    def second() -> None:
        with waiting.one_at_a_time(path, "tokenising prose"):
            order.append("second")

    with file_lock(path):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(1.5)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
    assert capsys.readouterr().err == "waiting for another process that is tokenising prose\n"

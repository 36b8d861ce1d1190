from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_wandb_server import FakeWandb

from posenc.tracking.wandb_server import answers, credentials, host_of, requested_mode, server_url

KEY = "k" * 40


def test_a_key_of_the_environment_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".netrc").write_text(f"machine wandb.example login user password {'n' * 40}\n")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert credentials("https://wandb.example") == {"api_key": KEY}
    monkeypatch.setenv("WANDB_API_KEY", "")
    assert credentials("https://wandb.example") == {"api_key": "n" * 40}


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://api.wandb.ai", True),
        ("https://api.forge.coreweave.com", True),
        ("https://wandb.example", False),
        ("https://api.wandb.ai.example", False),
    ],
)
def test_a_netrc_entry_is_for_its_host_and_the_hosts_other_name(home: Path, url: str, found: bool) -> None:
    (home / ".netrc").write_text(f"machine api.wandb.ai login user password {KEY}\n")
    assert credentials(url) == ({"api_key": KEY} if found else None)


@pytest.mark.parametrize("content", ["machine", "\0\xff", "machine wandb.example login user\n"])
def test_a_netrc_that_is_no_use_is_no_key(home: Path, content: str) -> None:
    (home / ".netrc").write_text(content, encoding="latin-1")
    assert credentials("https://wandb.example") is None


def test_netrc_may_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text(f"machine wandb.example login user password {KEY}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "mine"))
    assert credentials("https://wandb.example") == {"api_key": KEY}


def test_a_token_file_counts_as_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_IDENTITY_TOKEN_FILE", "token.jwt")
    assert credentials("https://wandb.example") == {}


def test_the_users_settings_file_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / ".config" / "wandb" / "settings"
    file.parent.mkdir(parents=True)
    file.write_text("[default]\nbase_url = http://own.example:8080/\nmode = offline\n")
    assert server_url() == "http://own.example:8080"
    assert requested_mode() == "offline"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert requested_mode() == "online"


@pytest.mark.parametrize(
    ("said", "meant"), [("dryrun", "offline"), ("run", "online"), ("", None), ("nonsense", None)]
)
def test_only_modes_that_wandb_knows_count(
    said: str, meant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", said)
    assert requested_mode() == meant


def test_without_settings_it_is_the_hosted_service() -> None:
    assert server_url().startswith("https://")


def test_messages_never_show_a_password_in_an_address() -> None:
    assert host_of("http://user:secret@wandb.example:8080/x") == "wandb.example:8080"


def test_a_server_that_answers_anything_is_there(fake_wandb: FakeWandb) -> None:
    assert answers(fake_wandb.url)
    fake_wandb.state = "unauthorized"
    assert answers(fake_wandb.url)


def test_no_server_is_known_at_once_and_a_silent_one_in_two_seconds(dead_port: str, silent_port: str) -> None:
    start = time.monotonic()
    assert not answers(dead_port)
    assert not answers("http://[")
    assert time.monotonic() - start < 10
    assert not answers(silent_port)
    assert time.monotonic() - start < 20


def test_a_proxy_is_used_as_wandb_uses_it(
    fake_wandb: FakeWandb, dead_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", fake_wandb.url)
    assert answers("http://wandb.invalid")
    monkeypatch.setenv("http_proxy", dead_port)
    assert not answers("http://wandb.invalid")

"""Settings come from the environment, are frozen, and never show the token."""

import pytest
from pydantic import SecretStr, ValidationError

from outrider_runtime.settings import (
    ConfigurationError,
    ServiceSettings,
    is_loopback,
    require_secret_beyond_loopback,
    settings_config,
)


class ExampleSettings(ServiceSettings):
    """A service's settings as the services write them."""

    model_config = settings_config("OUTRIDER_EXAMPLE_")

    port: int = 1


def test_environment_prefix_and_common_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_EXAMPLE_PORT", "4242")
    monkeypatch.setenv("OUTRIDER_TOKEN", "hush")
    monkeypatch.setenv("OUTRIDER_LOG_LEVEL", "debug")
    settings = ExampleSettings()
    assert (settings.port, settings.token_text, settings.log_level) == (4242, "hush", "debug")


def test_masked_settings_show_everything_but_the_token() -> None:
    shown = ExampleSettings(token=SecretStr("hush"), port=7).masked()
    assert '"port": 7' in shown
    assert "hush" not in shown
    assert "hush" not in repr(ExampleSettings(token=SecretStr("hush")))


def test_settings_are_frozen_and_know_their_names() -> None:
    settings = ExampleSettings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 2
    with pytest.raises(ValidationError, match="colour"):
        ExampleSettings.model_validate({"colour": "red"})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"])
def test_loopback_needs_no_secret(host: str) -> None:
    assert is_loopback(host)
    require_secret_beyond_loopback(host, None, "OUTRIDER_TOKEN")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_beyond_loopback_needs_one(host: str) -> None:
    assert not is_loopback(host)
    require_secret_beyond_loopback(host, "hush", "OUTRIDER_TOKEN")
    for absent in (None, ""):
        with pytest.raises(ConfigurationError, match="OUTRIDER_TOKEN is not set"):
            require_secret_beyond_loopback(host, absent, "OUTRIDER_TOKEN")

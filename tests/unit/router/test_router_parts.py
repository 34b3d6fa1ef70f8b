"""Small parts: mailbox, metrics, settings."""

import asyncio
from dataclasses import replace

import pytest
from pydantic import ValidationError

from outrider_router.mailbox import Mailbox
from outrider_router.metrics import (
    INTER_TOKEN_BUCKETS_S,
    TIME_TO_FIRST_TOKEN_BUCKETS_S,
    RequestRecord,
    RouterMetrics,
)
from outrider_router.settings import RouterSettings
from outrider_router.turns import Turns
from outrider_router.types import (
    Failure,
    FailureCode,
    Finish,
    FinishKind,
    Sampling,
    Speculation,
    Submission,
    Update,
)
from outrider_runtime.clock import VirtualClock
from outrider_runtime.metrics import new_registry
from outrider_runtime.settings import ConfigurationError


def submission(max_tokens: int = 10) -> Submission:
    sampling = Sampling(1.0, 1.0, 0, max_tokens)
    return Submission("r", 0, (1,), 0, sampling, Speculation())


async def test_what_is_not_read_is_bounded_also_where_tokens_weigh_much() -> None:
    """F16: the rest of the answer is given up, what waits can still be read."""
    for top, most in ((None, 32_768), (15, 2048)):
        one = replace(submission(max_tokens=10**6), top_logprobs=top)
        mailbox = Mailbox([one, one], Turns())
        for _ in range(60):
            mailbox.deliver(0, Update(token_ids=(7,) * 1024))
        mailbox.deliver(1, Update(token_ids=(7,)))
        news = await mailbox.next()
        assert most < len(news[0].token_ids) <= most + 1024
        assert isinstance(news[0].end, Failure)
        assert "not read in time" in news[0].end.message
        assert news[1] == Update(token_ids=(7,))
        mailbox.deliver(1, Update(end=Finish(FinishKind.LENGTH)))
        assert (await mailbox.next())[1].end == Finish(FinishKind.LENGTH)


async def test_unread_news_merge_and_nothing_follows_an_end() -> None:
    mailbox = Mailbox([submission(), submission()], Turns())
    mailbox.deliver(0, Update((1, 2), cached_prompt_tokens=4))
    mailbox.deliver(1, Update((9,)))
    mailbox.deliver(0, Update((3,), end=Finish(FinishKind.LENGTH)))
    mailbox.deliver(0, Update((4,)))
    news = await mailbox.next()
    assert news[0] == Update((1, 2, 3), 4, Finish(FinishKind.LENGTH))
    assert news[1] == Update((9,))
    mailbox.fail(Failure(FailureCode.UNAVAILABLE, "gone"))
    assert list(await mailbox.next()) == [1], "only places that have not ended fail"


async def test_mailbox_holds_no_more_than_was_asked_for() -> None:
    mailbox = Mailbox([submission(max_tokens=3)], Turns())
    for _ in range(100):
        mailbox.deliver(0, Update((1,)))
    news = await mailbox.next()
    assert news[0].token_ids == (1, 1, 1)
    assert isinstance(news[0].end, Failure)


async def test_waiting_for_news_wakes_on_them_and_closed_places_are_silent() -> None:
    mailbox = Mailbox([submission(), submission()], Turns())
    waiting = asyncio.create_task(mailbox.next())
    await asyncio.sleep(0)
    mailbox.close(0)
    mailbox.deliver(0, Update((1,)))
    await asyncio.sleep(0)
    assert not waiting.done()
    mailbox.deliver(1, Update((2,)))
    assert list(await waiting) == [1]


async def test_time_per_output_token_is_per_token_and_the_gap_per_round() -> None:
    """G03: rounds of 4 tokens every 40 ms are 10 ms per token, after the first token."""
    clock, series = VirtualClock(), new_registry()
    record = RequestRecord(RouterMetrics(series), clock, "test")
    await clock.advance(0.25)
    record.delivered(0, 1)
    for _ in range(10):
        await clock.advance(0.04)
        record.delivered(0, 4)
    record.end("length")
    record.end("error")

    def value(name: str, **labels: str) -> float | None:
        return series.get_sample_value(f"outrider_router_{name}", labels)

    assert value("time_to_first_token_seconds_sum") == pytest.approx(0.25)
    assert value("request_time_per_output_token_seconds_sum") == pytest.approx(0.01)
    assert value("request_time_per_output_token_seconds_count") == 1
    assert value("round_gap_seconds_count") == 10
    assert value("round_gap_seconds_sum") == pytest.approx(0.4)
    assert value("generation_tokens_total") == 41
    assert value("requests_total", outcome="length") == 1
    assert value("requests_total", outcome="error") == 0
    assert value("requests_started_total") == 1


@pytest.mark.parametrize("buckets", [TIME_TO_FIRST_TOKEN_BUCKETS_S, INTER_TOKEN_BUCKETS_S])
def test_buckets_grow(buckets: tuple[float, ...]) -> None:
    assert list(buckets) == sorted(set(buckets))


async def test_fresh_router_exports_every_outcome_as_zero() -> None:
    series = new_registry()
    RouterMetrics(series)
    samples = [s for metric in series.collect() for s in metric.samples]
    outcomes = {s.labels["outcome"]: s.value for s in samples if "outcome" in s.labels}
    assert set(outcomes.values()) == {0.0}
    assert len(outcomes) == 8
    assert not [s.name for s in samples if s.name.endswith("_created")]


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_ROUTER_WORKERS", "127.0.0.1:7080, host:7081,")
    monkeypatch.setenv("OUTRIDER_ROUTER_API_KEYS", "alpha,beta")
    monkeypatch.setenv("OUTRIDER_TOKEN", "hidden-token")
    settings = RouterSettings()
    assert settings.workers == ("127.0.0.1:7080", "host:7081")
    assert [key.get_secret_value() for key in settings.api_keys] == ["alpha", "beta"]
    assert settings.token_text == "hidden-token"
    shown = settings.masked()
    assert not any(secret in shown for secret in ("alpha", "beta", "hidden-token"))
    with pytest.raises(ValidationError):
        settings.port = 1


def test_open_address_needs_keys() -> None:
    RouterSettings(host="127.0.0.1").require_safe()
    RouterSettings(host="0.0.0.0", api_keys="k").require_safe()
    with pytest.raises(ConfigurationError, match="OUTRIDER_ROUTER_API_KEYS"):
        RouterSettings(host="0.0.0.0").require_safe()

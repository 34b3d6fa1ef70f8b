"""The dashboard *Service*: what clients get, and what stands in their way."""

from deploy.generate.panels import (
    TOKENS_PER_S,
    Json,
    Query,
    Row,
    bars,
    dashboard,
    heat,
    lines,
    number,
)

_ROUTER = "outrider_router"
_WORKER = "outrider_worker"


def _quantiles(histogram: str) -> tuple[Query, ...]:
    return tuple(
        Query(
            f"histogram_quantile({share}, sum by (le)"
            f" (rate({histogram}_bucket[$__rate_interval])))",
            name,
        )
        for share, name in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
    )


def _heat(histogram: str) -> Query:
    return Query(
        f"sum by (le) (increase({histogram}_bucket[$__rate_interval]))", "{{le}}", heat=True
    )


OVERVIEW = Row(
    "Overview",
    (
        number(
            "Requests",
            "Generation requests received per second, refused ones included.",
            Query(f"sum(rate({_ROUTER}_requests_started_total[$__rate_interval]))", "requests"),
            "reqps",
        ),
        number(
            "Tokens",
            "Tokens delivered to clients per second.",
            Query(f"sum(rate({_ROUTER}_generation_tokens_total[$__rate_interval]))", "tokens"),
            TOKENS_PER_S,
        ),
        number(
            "Errors",
            "Of the requests that clients did not spoil or cancel.",
            Query("outrider:error_ratio:rate5m", "errors"),
            "percentunit",
        ),
        number(
            "First token, 95 %",
            "One request in twenty waits longer.",
            Query("outrider:time_to_first_token_seconds:p95_rate5m", "95 %"),
            "s",
        ),
        number(
            "Workers",
            "Workers that a router can use.",
            Query(f"sum(max by (worker) ({_ROUTER}_worker_up))", "ready"),
        ),
        number(
            "Headroom",
            "What is left of the rate at full load, by the planner's costs; 1 is idle.",
            Query("outrider:headroom_ratio:avg", "left"),
            "percentunit",
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        lines(
            "Requests by outcome",
            "Every request has one outcome. `overloaded` is refused for want of room.",
            Query(
                f"sum by (outcome) (rate({_ROUTER}_requests_total[$__rate_interval]))",
                "{{outcome}}",
            ),
            unit="reqps",
            stacked=True,
        ),
        lines(
            "Tokens",
            "Prompt tokens sent to workers and tokens delivered, per second.",
            Query(f"sum(rate({_ROUTER}_prompt_tokens_total[$__rate_interval]))", "prompt"),
            Query(f"sum(rate({_ROUTER}_generation_tokens_total[$__rate_interval]))", "delivered"),
            unit=TOKENS_PER_S,
        ),
        lines(
            "Second attempts and ignored fields",
            "Choices sent to another worker, begun or not, and fields without effect.",
            Query(f"sum(rate({_ROUTER}_retries_total[$__rate_interval]))", "retries"),
            Query(f"sum(rate({_ROUTER}_migrations_total[$__rate_interval]))", "migrations"),
            Query(
                f"sum by (field) (rate({_ROUTER}_ignored_fields_total[$__rate_interval]))",
                "{{field}}",
            ),
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        lines(
            "Time to first token",
            "From the request to the first token of any of its choices.",
            *_quantiles(f"{_ROUTER}_time_to_first_token_seconds"),
            unit="s",
        ),
        lines(
            "Time per output token",
            "Of an answer, over its tokens after the first.",
            *_quantiles(f"{_ROUTER}_request_time_per_output_token_seconds"),
            unit="s",
        ),
        lines(
            "Whole requests",
            "Those that ended by themselves.",
            *_quantiles(f"{_ROUTER}_e2e_request_latency_seconds"),
            unit="s",
        ),
        heat(
            "Time to first token",
            "How waits are spread: two bands are two kinds of prompts, or a cold cache.",
            _heat(f"{_ROUTER}_time_to_first_token_seconds"),
            "s",
        ),
        heat(
            "Gaps between deliveries",
            "One delivery is a round: it brings several tokens where drafts hold.",
            _heat(f"{_ROUTER}_round_gap_seconds"),
            "s",
        ),
        lines(
            "Time in line",
            "Of admitted requests, before a worker gets them.",
            *_quantiles(f"{_ROUTER}_request_queue_time_seconds"),
            unit="s",
        ),
    ),
)

LOAD = Row(
    "Load",
    (
        lines(
            "In flight",
            "Choices that the routers have admitted, and where they are at the workers.",
            Query(f"sum({_ROUTER}_choices_in_flight)", "admitted"),
            Query(f"sum({_WORKER}_requests_running)", "running"),
            Query("outrider:requests_waiting:sum", "waiting"),
        ),
        lines(
            "KV cache in use",
            "What running requests hold. Near 1 requests give way to each other.",
            Query(f"{_WORKER}_kv_usage_ratio", "{{instance}}"),
            unit="percentunit",
        ),
        bars(
            "Choices by worker",
            "How the routers share the load out.",
            Query(f"sum by (worker) ({_ROUTER}_worker_choices_in_flight)", "{{worker}}"),
        ),
        lines(
            "In line",
            "Requests without a place: at the routers for room, at the workers for memory.",
            Query(f"sum({_ROUTER}_requests_waiting)", "at routers"),
            Query(f"sum({_WORKER}_requests_waiting)", "at workers"),
        ),
        lines(
            "Error ratio",
            "Of the requests that clients did not spoil or cancel, five minutes.",
            Query("outrider:error_ratio:rate5m", "errors"),
            unit="percentunit",
        ),
        lines(
            "Workers lost and found",
            "1 while a router can use the worker; failures count up until one request succeeds.",
            Query(f"max by (worker) ({_ROUTER}_worker_up)", "up {{worker}}"),
            Query(
                f"max by (worker) ({_ROUTER}_worker_consecutive_failures)", "failures {{worker}}"
            ),
        ),
    ),
)


def service() -> Json:
    """Service."""
    return dashboard(
        "outrider-service",
        "Outrider / Service",
        "Traffic, latency, errors, load.",
        (OVERVIEW, TRAFFIC, LATENCY, LOAD),
    )

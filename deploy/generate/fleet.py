"""The dashboard *Fleet*: the same questions of every worker, side by side, and of the planners."""

from deploy.generate.panels import (
    TOKENS_PER_S,
    Json,
    Query,
    Row,
    dashboard,
    label_variable,
    lines,
    number,
)

_PLANNER = "outrider_planner"
_WORKER = "outrider_worker"
_CHOSEN = '{instance=~"$instance"}'


def _gauge(name: str) -> Query:
    return Query(f"{_WORKER}_{name}{_CHOSEN}", "{{instance}}")


def _rate(name: str, series: str = "total") -> str:
    return f"sum by (instance) (rate({_WORKER}_{name}_{series}{_CHOSEN}[$__rate_interval]))"


def _planned(name: str, shown: str) -> Query:
    """A gauge that planners have of each worker, by the worker's own instance.

    The most of all planners: one that a worker left shows it for another minute.
    """
    info = f"{_WORKER}_info{_CHOSEN}"
    joined = f"max by (worker) ({_PLANNER}_{name}) * on (worker) group_left (instance) {info}"
    return Query(joined, shown)


OVERVIEW = Row(
    "Overview",
    (
        number(
            "Workers ready", "That take requests.", Query(f"sum({_WORKER}_ready{_CHOSEN})", "ready")
        ),
        number(
            "With a planner",
            "Workers with an open stream to a planner.",
            Query(f"sum({_WORKER}_planner_connected{_CHOSEN})", "connected"),
        ),
        number("Planners", "That answer.", Query('sum(up{job="outrider-planner"})', "up")),
        number(
            "Store",
            "Planners that reach their store.",
            Query(f"sum({_PLANNER}_store_up)", "up"),
        ),
        number(
            "Plans refused or malformed",
            "By workers, in the last hour; should be 0.",
            Query(
                f"sum(increase({_WORKER}_plans_refused_total{_CHOSEN}[1h]))"
                f" + sum(increase({_WORKER}_plans_malformed_total{_CHOSEN}[1h]))",
                "plans",
            ),
        ),
        number(
            "Preemptions",
            "Requests that had to give way, in the last hour.",
            Query(f"sum(increase({_WORKER}_preemptions_total{_CHOSEN}[1h]))", "requests"),
        ),
    ),
)

WORK = Row(
    "Work",
    (
        lines(
            "Tokens",
            "Emitted per second.",
            Query(_rate("generation_tokens"), "{{instance}}"),
            unit=TOKENS_PER_S,
        ),
        lines("Running", "Requests admitted.", _gauge("requests_running")),
        lines("Waiting", "Requests in the line.", _gauge("requests_waiting")),
        lines(
            "KV cache in use",
            "By running requests.",
            _gauge("kv_usage_ratio"),
            unit="percentunit",
        ),
        lines(
            "Prefix cache",
            "Prompt tokens found, of those looked up.",
            Query(f"outrider:prefix_cache_hit_ratio:rate5m{_CHOSEN}", "{{instance}}"),
            unit="percentunit",
        ),
        lines(
            "Round, mean",
            "Over all modes and loads.",
            Query(
                f"{_rate('round_duration_seconds', 'sum')}"
                f" / ({_rate('round_duration_seconds', 'count')} > 0)",
                "{{instance}}",
            ),
            unit="s",
        ),
    ),
)

SPECULATION = Row(
    "Speculation",
    (
        lines(
            "Draft length",
            "Planned, mean over rounds.",
            Query(
                f"{_rate('draft_length', 'sum')} / ({_rate('draft_length', 'count')} > 0)",
                "{{instance}}",
            ),
        ),
        lines(
            "Acceptance",
            "Accepted of those verified: one worker apart from the others has other traffic.",
            Query(f"{_rate('accepted_tokens')} / ({_rate('verified_tokens')} > 0)", "{{instance}}"),
            unit="percentunit",
        ),
        lines(
            "Plan age",
            "Since the plan was renewed. Beyond ten seconds a worker decodes plainly.",
            _gauge("plan_age_seconds"),
            unit="s",
        ),
    ),
)

PLANNED = Row(
    "As its planner sees each worker",
    (
        lines(
            "Headroom",
            "Scale out when it is gone.",
            _planned("headroom_ratio", "{{instance}}"),
            unit="percentunit",
        ),
        lines(
            "Tokens, predicted and emitted",
            "Per second. Predicted is for the requests that are there, emitted includes idle time.",
            _planned("predicted_rate_tokens_per_second", "predicted {{instance}}"),
            Query(_rate("generation_tokens"), "emitted {{instance}}"),
            unit=TOKENS_PER_S,
        ),
        lines(
            "Requests decoding",
            "At the last report.",
            _planned("present_requests", "{{instance}}"),
        ),
    ),
)

HEALTH = Row(
    "Health",
    (
        lines(
            "Exposed host time",
            "Share of rounds' time in which the device waits for the host.",
            Query(f"outrider:exposed_host_ratio:rate5m{_CHOSEN}", "{{instance}}"),
            unit="percentunit",
        ),
        lines(
            "Rounds by launch mode",
            "`ahead` is launched before the last round was read.",
            Query(
                f"sum by (mode) (rate({_WORKER}_rounds_total{_CHOSEN}[$__rate_interval]))",
                "{{mode}}",
            ),
            stacked=True,
        ),
        lines(
            "Rounds without a graph",
            "On a GPU each was slower than it had to be.",
            Query(_rate("graph_fallbacks"), "{{instance}}"),
        ),
        lines(
            "Requests by outcome",
            "As the workers saw them end.",
            Query(
                f"sum by (outcome) (rate({_WORKER}_requests_total{_CHOSEN}[$__rate_interval]))",
                "{{outcome}}",
            ),
            stacked=True,
        ),
        lines(
            "Guard trips",
            "Per minute, with what let drafts back in.",
            Query(f"60 * {_rate('guard_trips')}", "trips {{instance}}"),
            Query(f"60 * {_rate('guard_readmissions')}", "readmissions {{instance}}"),
        ),
        lines(
            "Plan values clamped",
            "Plans that asked for more than a worker can do, per second.",
            Query(_rate("plan_clamps"), "{{instance}}"),
        ),
    ),
)

PLANNERS = Row(
    "Planners",
    (
        lines(
            "Workers by planner",
            "Streams open; they spread by themselves.",
            Query(f"{_PLANNER}_workers", "{{instance}}"),
        ),
        lines(
            "Reports",
            "Received per second, and those dropped or not believed.",
            Query(f"sum(rate({_PLANNER}_reports_received_total[$__rate_interval]))", "received"),
            Query(f"sum(rate({_PLANNER}_reports_dropped_total[$__rate_interval]))", "dropped"),
            Query(
                f"sum by (reason) (rate({_PLANNER}_reports_rejected_total[$__rate_interval]))",
                "rejected: {{reason}}",
            ),
        ),
        lines(
            "Store",
            "Batches sent and scopes read per second, by result.",
            Query(
                f"sum by (result) (rate({_PLANNER}_store_exchanges_total[$__rate_interval]))",
                "{{result}}",
            ),
        ),
        lines(
            "Decision log",
            "Entries since the start; lost ones should stay at 0.",
            Query(f"{_PLANNER}_decision_log_written_entries", "written {{instance}}"),
            Query(f"{_PLANNER}_decision_log_lost_entries", "lost {{instance}}"),
        ),
    ),
)


def fleet() -> Json:
    """Fleet."""
    return dashboard(
        "outrider-fleet",
        "Outrider / Fleet",
        "Every worker, and the planners.",
        (OVERVIEW, WORK, SPECULATION, PLANNED, HEALTH, PLANNERS),
        variables=(label_variable("instance", "Worker", f"{_WORKER}_ready"),),
    )

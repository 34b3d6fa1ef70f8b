"""The dashboard *Speculation*: what is drafted, what holds, what it gives, and who decided so."""

from deploy.generate.panels import Json, Mark, Query, Row, bars, dashboard, heat, lines, number

_PLANNER = "outrider_planner"
_WORKER = "outrider_worker"
_BUDGET_TIME = f"{_WORKER}_budget_seconds_total[$__rate_interval]"


def _by_drafter(counter: str) -> str:
    return f"sum by (drafter) (rate({_WORKER}_{counter}_total[$__rate_interval]))"


def _rate(series: str) -> str:
    return f"sum(rate({_WORKER}_{series}[$__rate_interval]))"


def _total(counter: str) -> str:
    return _rate(f"{counter}_total")


def _ratio(labels: str, part: str, whole: str) -> str:
    """One counter over another, where there is something to take a part of."""
    over, under = (
        f"sum by ({labels}) (rate({_WORKER}_{name}_total[$__rate_interval]))"
        for name in (part, whole)
    )
    return f"{over} / ({under} > 0)"


OVERVIEW = Row(
    "Overview",
    (
        number(
            "Draft length",
            "Planned, mean over the rounds of all workers.",
            Query(f"{_rate('draft_length_sum')} / ({_rate('draft_length_count')} > 0)", "tokens"),
        ),
        number(
            "Acceptance",
            "Drafts that held, of those that were verified.",
            Query(f"{_total('accepted_tokens')} / ({_total('verified_tokens')} > 0)", "accepted"),
            "percentunit",
        ),
        number(
            "Rate against off",
            "Predicted rate over the rate without drafts, each drafter by what was verified of it;"
            " above 1 speculation pays.",
            Query(f"avg({_PLANNER}_mean_rate_vs_off_ratio)", "ratio"),
        ),
        number(
            "Tokens per row",
            "Tokens that a row of a target forward brings: 1 without drafts, less by what fails.",
            Query(f"{_total('generation_tokens')} / ({_total('target_rows')} > 0)", "tokens"),
        ),
        number(
            "Guards tripped",
            "Workers whose guard holds speculation off.",
            Query(f"sum({_WORKER}_guard_tripped)", "workers"),
        ),
        number(
            "Oldest plan",
            "Since it was renewed. Beyond ten seconds a worker decodes plainly.",
            Query(f"max({_WORKER}_plan_age_seconds)", "age"),
            "s",
        ),
    ),
)

DRAFTS = Row(
    "Drafts",
    (
        lines(
            "Draft length planned",
            "Tokens per request and round, at the load of the moment.",
            Query(f"{_PLANNER}_draft_length", "{{drafter}} {{worker}}"),
        ),
        lines(
            "Rows verified",
            "Rows of a target forward that the plan asks for.",
            Query(f"{_PLANNER}_verify_rows", "{{drafter}} {{worker}}"),
        ),
        lines(
            "Requests decoding",
            "The load that plans answer to: more requests, shorter drafts.",
            Query(f"{_PLANNER}_present_requests", "{{worker}}"),
        ),
        lines(
            "Drafted, verified, accepted",
            "Three counters, never added: each is a part of the one before.",
            Query(_total("draft_tokens"), "drafted"),
            Query(_total("verified_tokens"), "verified"),
            Query(_total("accepted_tokens"), "accepted"),
        ),
        lines(
            "Wasted by drafter",
            "Verified and not accepted, tokens per second: rows that brought nothing.",
            Query("outrider:wasted_tokens:rate5m", "{{drafter}}"),
        ),
        lines(
            "Time share of budgets",
            "Of rounds' time, by the draft length planned: where plans settle, or waver.",
            Query(
                f"sum by (draft_length) (rate({_BUDGET_TIME})) / on () group_left ()"
                f" (sum(rate({_BUDGET_TIME})) > 0)",
                "{{draft_length}}",
            ),
            unit="percentunit",
            stacked=True,
        ),
        heat(
            "Rounds by draft length",
            "How often each length is planned; rounds with long drafts take longer.",
            Query(
                f"sum by (le) (increase({_WORKER}_draft_length_bucket[$__rate_interval]))",
                "{{le}}",
                heat=True,
            ),
        ),
    ),
)

ACCEPTANCE = Row(
    "Acceptance",
    (
        lines(
            "Acceptance by drafter",
            "Accepted over verified, five minutes.",
            Query("outrider:acceptance_ratio:rate5m", "{{drafter}}"),
            unit="percentunit",
        ),
        heat(
            "Acceptance by position",
            "Accepted of those verified at each place. Bright rows end where drafts should.",
            Query(
                _ratio("position", "accepted_tokens_by_position", "verified_tokens_by_position"),
                "{{position}}",
            ),
            unit="percentunit",
        ),
        lines(
            "Acceptance by drafter and class",
            "A class is an API key's label with whether requests are greedy or sampled.",
            Query(
                _ratio("drafter, class", "accepted_tokens", "verified_tokens"),
                "{{drafter}} {{class}}",
            ),
            unit="percentunit",
        ),
        bars(
            "Accept length",
            "Tokens that a verified draft brings, the one that is never drafted included.",
            Query("outrider:accept_length:rate5m", "{{drafter}}"),
        ),
        lines(
            "Accepted per round, predicted and realised",
            "What the planner expects and what comes; apart for long means drift.",
            Query(f"avg({_PLANNER}_predicted_accepted_tokens)", "predicted"),
            Query(f"avg({_PLANNER}_realised_accepted_tokens)", "realised"),
        ),
        lines(
            "Calibration error",
            "Mean distance of predicted from realised acceptance, by score bin.",
            Query(f"{_PLANNER}_calibration_error_ratio", "{{drafter}} {{worker}}"),
            unit="percentunit",
        ),
        lines(
            "Verified drafts per second",
            "Request-rounds with a verified draft: the weight behind the shares above.",
            Query(_by_drafter("verify_steps"), "{{drafter}}"),
        ),
    ),
)

WORTH = Row(
    "Is it worth it?",
    (
        lines(
            "Rate against off",
            "By drafter, also of those that nothing was verified of yet; 1 is the rate without"
            " drafts.",
            Query(f"{_PLANNER}_rate_vs_off_ratio", "{{drafter}} {{worker}}"),
        ),
        lines(
            "Round, predicted and measured",
            "Apart for long means that costs have changed since they were measured.",
            Query(f"{_PLANNER}_predicted_round_seconds", "predicted {{worker}}"),
            Query(f"{_PLANNER}_measured_round_seconds", "measured {{worker}}"),
            unit="s",
        ),
        lines(
            "Target forwards over the cost table",
            "1 where forwards take what was measured at the start.",
            Query("outrider:target_cost_ratio:rate5m", "{{instance}}"),
        ),
        lines(
            "Tokens per round",
            "Of all running requests together.",
            Query(f"{_total('generation_tokens')} / ({_total('rounds')} > 0)", "tokens"),
        ),
        lines(
            "Guard's ledger",
            "Tokens lost against decoding plainly; at the threshold the guard acts.",
            Query(f"{_WORKER}_guard_ledger_tokens", "lost {{instance}}"),
            Query(f"{_WORKER}_guard_threshold_tokens", "threshold {{instance}}"),
        ),
        lines(
            "Where rounds' time goes",
            "Seconds per second. Hidden host time runs beside the device.",
            Query(
                f"sum by (part) (rate({_WORKER}_round_seconds_total[$__rate_interval]))",
                "{{part}}",
            ),
            unit="s",
        ),
        lines(
            "Shadow policies",
            "What other policies would give, by their own prediction.",
            Query(f"{_PLANNER}_shadow_rate_vs_off_ratio", "{{policy}} {{worker}}"),
        ),
    ),
)

PLANS = Row(
    "Plans",
    (
        lines(
            "Plans sent",
            "Per second; held ones by reason.",
            Query(f"sum(rate({_PLANNER}_plans_pushed_total[$__rate_interval]))", "sent"),
            Query(
                f"sum by (reason) (rate({_PLANNER}_plans_held_total[$__rate_interval]))",
                "held: {{reason}}",
            ),
        ),
        lines(
            "From report to plan",
            "How long a report takes to count.",
            Query(
                "histogram_quantile(0.95, sum by (le)"
                f" (rate({_PLANNER}_report_to_plan_seconds_bucket[$__rate_interval])))",
                "95 %",
            ),
            unit="s",
        ),
        lines(
            "Plan age",
            "Since renewed, at the worker; since changed, at the planner.",
            Query(f"{_WORKER}_plan_age_seconds", "renewed {{instance}}"),
            Query(f"{_PLANNER}_plan_age_seconds", "changed {{worker}}"),
            unit="s",
        ),
    ),
)

MARKS = (
    Mark(
        "Guard tripped",
        f"increase({_WORKER}_guard_trips_total[$__rate_interval]) > 0",
        "red",
        "{{instance}}",
    ),
    Mark(
        "Drift",
        f"increase({_PLANNER}_drift_events_total[$__rate_interval]) > 0",
        "orange",
        "{{worker}}",
    ),
)


def speculation() -> Json:
    """Speculation."""
    return dashboard(
        "outrider-speculation",
        "Outrider / Speculation",
        "What is drafted, what holds, what it gives.",
        (OVERVIEW, DRAFTS, ACCEPTANCE, WORTH, PLANS),
        MARKS,
    )

"""Registries of their own, and what is in them."""

from prometheus_client import Counter, Histogram

from outrider_runtime.metrics import LoopHistogram, new_registry, render


def test_registries_do_not_share_and_have_no_created_series() -> None:
    one, two = new_registry(), new_registry()
    Counter("outrider_example_things", "Things.", registry=one).inc(3)
    assert b"outrider_example_things_total 3.0" in render(one)
    assert b"_created" not in render(one)
    assert render(two) == b""


def test_the_loops_histogram_is_the_librarys_in_all_that_is_seen() -> None:
    name, text, bounds = "outrider_example_seconds", "Seconds.", (0.001, 0.25, 1.0)
    one, two = new_registry(), new_registry()
    ours, theirs = (
        LoopHistogram(name, text, bounds),
        Histogram(name, text, (), buckets=bounds, registry=two),
    )
    one.register(ours)
    assert render(one) == render(two)
    for seconds in (0.0, 0.001, 0.0011, 0.25, 0.5, 1.0, 7.0):
        ours.observe(seconds)
        theirs.observe(seconds)
    assert render(one) == render(two)

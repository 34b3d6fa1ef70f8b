"""Virtual time stands still until it is moved, and wakes sleepers in order."""

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from outrider_runtime.clock import SystemClock, VirtualClock


async def test_advance_wakes_each_sleeper_at_its_own_moment() -> None:
    clock = VirtualClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic_s()))

    tasks = [asyncio.create_task(sleeper(*who)) for who in (("late", 3), ("soon", 1), ("far", 9))]
    await clock.advance(5)
    assert [name for name, _ in woken] == ["soon", "late"]
    assert clock.monotonic_s() == 5
    await clock.advance(4)
    await asyncio.gather(*tasks)
    assert woken == [("soon", 1), ("late", 3), ("far", 9)]


async def test_a_sleeper_that_sleeps_again_is_woken_again() -> None:
    clock = VirtualClock()
    ticks: list[float] = []

    async def ticker() -> None:
        for _ in range(3):
            await clock.sleep(2)
            ticks.append(clock.monotonic_s())

    task = asyncio.create_task(ticker())
    await clock.advance(5)
    assert ticks == [2, 4]
    await clock.advance(1)
    await task
    assert ticks == [2, 4, 6]


async def test_a_cancelled_sleeper_does_not_disturb_the_others() -> None:
    clock = VirtualClock()
    cancelled = asyncio.create_task(clock.sleep(1))
    other = asyncio.create_task(clock.sleep(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    await clock.advance(2)
    assert cancelled.cancelled()
    assert other.done()


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8))
def test_time_never_goes_back_for_sleepers(durations: list[float]) -> None:
    async def scenario() -> list[float]:
        clock = VirtualClock()
        seen: list[float] = []

        async def sleeper(seconds: float) -> None:
            await clock.sleep(seconds)
            seen.append(clock.monotonic_s())

        async with asyncio.TaskGroup() as group:
            for seconds in durations:
                group.create_task(sleeper(seconds))
            await clock.advance(10)
        return seen

    assert asyncio.run(scenario()) == sorted(durations)


def test_the_wall_clock_may_jump_the_monotonic_one_does_not() -> None:
    clock = VirtualClock(start_s=5, wall_offset_s=1000)
    clock.step_wall(-100)
    assert (clock.monotonic_s(), clock.wall_s()) == (5, 905)


async def test_the_system_clock_is_the_machine_s() -> None:
    clock = SystemClock()
    before = clock.monotonic_s()
    await clock.sleep(0.01)
    assert 0.009 <= clock.monotonic_s() - before < 5
    assert abs(clock.wall_s() - time.time()) < 5

"""What benchmarks ask: a prompt asked twice finds its own answer, and the gain is no gain (D09)."""

from benchmarks.prompts import PROMPTS


def test_no_prompt_is_asked_twice_or_begins_like_another() -> None:
    prompts = [prompt for kind in PROMPTS.values() for prompt in kind]
    assert len(set(prompts)) == len(prompts)
    assert not [(a, b) for a in prompts for b in prompts if a != b and b.startswith(a)]
    assert all(len(kind) >= 8 for kind in PROMPTS.values()), "eight at once are all different"

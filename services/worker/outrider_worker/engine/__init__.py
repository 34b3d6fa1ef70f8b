"""The engine loop and its tensor-free parts: scheduling, pages, commit, guard, plans, tallies."""

"""Prefix reuse: what is published, what is found, what is evicted and what is never."""

import pytest

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.prefix_cache import PrefixCache
from outrider_worker.engine.types import Request
from tests.support.paper_engine import spec_of

PAGE = 4
TEXT = tuple(range(10, 30))


class Shelf:
    """A page account whose requests are committed by hand."""

    def __init__(self, pages: int = 40, **cache: object) -> None:
        self.cache = PrefixCache(PAGE, **cache)  # type: ignore[arg-type]
        self.account = PageAccount(pages + 1, PAGE, self.cache)
        self.live: list[Request] = []

    def start(self, text: tuple[int, ...], committed: int, salt: bytes = b"") -> Request:
        """A request that takes its hit, computes the rest up to `committed`, and publishes."""
        request = Request.from_spec(spec_of(text, 8, salt=salt))
        self.account.adopt(request, self.cache.match(text, salt))
        assert self.account.try_reserve(request, len(text))
        self.live.append(request)
        self.commit(request, committed)
        return request

    def commit(self, request: Request, committed: int, **pools: int) -> None:
        request.committed = max(committed, request.committed)
        self.account.publish(request, pools)
        self.account.check(self.live)

    def end(self, request: Request) -> None:
        self.live.remove(request)
        self.account.release(request)
        self.account.check(self.live)

    def cached(self, text: tuple[int, ...], salt: bytes = b"") -> int:
        return self.cache.match(text, salt).tokens


def test_only_full_pages_of_committed_tokens_are_published() -> None:
    shelf = Shelf()
    request = shelf.start(TEXT, committed=7)
    assert shelf.cached(TEXT) == 4
    shelf.commit(request, 8)
    assert shelf.cached(TEXT) == 8
    assert shelf.cache.match(TEXT, b"").pages == tuple(request.pages[:2])


def test_the_last_known_token_is_never_taken_from_the_cache() -> None:
    shelf = Shelf()
    shelf.end(shelf.start(TEXT, committed=20))
    assert [shelf.cached(TEXT[:tokens]) for tokens in (3, 4, 5, 8, 9, 20)] == [0, 0, 4, 4, 8, 16]


def test_a_hit_ends_where_the_texts_part() -> None:
    shelf = Shelf()
    shelf.end(shelf.start(TEXT, committed=20))
    assert shelf.cached((*TEXT[:9], 99, *TEXT[10:])) == 8
    assert shelf.cached((99, *TEXT[1:])) == 0
    assert shelf.cached(TEXT[4:]) == 0, "the same tokens at another place are another text"


def test_tenants_never_share() -> None:
    shelf = Shelf()
    shelf.end(shelf.start(TEXT, committed=20, salt=b"a"))
    assert shelf.cached(TEXT, b"a") == 16
    assert shelf.cached(TEXT, b"b") == shelf.cached(TEXT) == 0


def test_a_hit_is_shared_and_outlives_its_first_owner() -> None:
    shelf = Shelf()
    first = shelf.start(TEXT, committed=20)
    second = shelf.start(TEXT, committed=20)
    assert second.cached_tokens == 16
    assert second.pages[:4] == first.pages[:4]
    assert second.pages[4] != first.pages[4]
    shelf.end(first)
    assert shelf.account.used_pages == 5
    shelf.end(second)
    assert (shelf.account.used_pages, shelf.account.cached_pages) == (0, 5)


def test_the_least_recently_used_goes_first_and_leaves_before_what_they_stand_on() -> None:
    shelf = Shelf(pages=8)
    old, new = TEXT[:16], tuple(range(50, 66))
    shelf.end(shelf.start(old, committed=16))
    shelf.end(shelf.start(new, committed=16))
    shelf.end(shelf.start(old, committed=16))  # used again: now `new` is the older one
    before = shelf.cache.counts.evicted_pages
    lodger = shelf.start((1, 2, 3), committed=0)
    assert (shelf.cached((*old, 0)), shelf.cached((*new, 0))) == (16, 12)
    assert shelf.account.try_reserve(lodger, 3 * PAGE - 1)
    assert (shelf.cached((*old, 0)), shelf.cached((*new, 0))) == (16, 4)
    assert shelf.cache.counts.evicted_pages - before == 3


def test_held_pages_are_never_evicted_and_a_refusal_changes_nothing() -> None:
    shelf = Shelf(pages=6)
    shelf.end(shelf.start(TEXT[:16], committed=16))
    shelf.start((*TEXT[:8], 1), committed=8)  # holds two of the four and one of its own
    greedy = Request.from_spec(spec_of((7,) * 20, 20))
    assert not shelf.account.try_reserve(greedy, 4 * PAGE)
    assert (greedy.pages, shelf.account.cached_pages) == ([], 2)
    assert shelf.account.try_reserve(greedy, 3 * PAGE)
    assert shelf.cached(TEXT) == 8
    assert shelf.account.spare_pages == 0


def test_twins_keep_their_own_pages_until_the_published_one_is_idle() -> None:
    """Two requests computed the same text at once: one copy is published, then the other one."""
    shelf = Shelf()
    first, second = (shelf.start(TEXT, committed=0) for _ in range(2))
    shelf.commit(first, 8, draft=8)
    shelf.commit(second, 12)
    assert shelf.cache.match(TEXT, b"").pages == tuple(first.pages[:2])
    shelf.end(first)
    assert shelf.account.cached_pages == 2
    shelf.commit(second, 12)
    hit = shelf.cache.match(TEXT, b"", ["draft"])
    assert (hit.pages, hit.pool_tokens) == (tuple(second.pages[:3]), {"draft": 0})
    assert shelf.account.cached_pages == 0, "the twin's copies are free again"


def test_a_tree_that_is_empty_leaves_nothing_behind() -> None:
    """Salts come and go: memory must not grow with those that were ever seen."""
    shelf = Shelf(pages=2)
    for tenant in range(50):
        shelf.end(shelf.start(TEXT[:8], committed=8, salt=b"%d" % tenant))
    assert len(shelf.cache._roots) == 1
    assert not shelf.cache._progress
    assert shelf.cache.counts.evicted_pages == 98


def test_a_pool_counts_as_far_as_its_drafter_has_fed_it() -> None:
    shelf = Shelf()
    request = shelf.start(TEXT, committed=16)
    shelf.commit(request, 16, draft=9)
    hit = shelf.cache.match(TEXT, b"", ["draft", "other"])
    assert (hit.tokens, hit.pool_tokens) == (16, {"draft": 8, "other": 0})
    shelf.commit(request, 16, draft=16)
    assert shelf.cache.match(TEXT, b"", ["draft"]).pool_tokens == {"draft": 16}


def test_a_lookahead_pool_loses_its_last_page_and_the_target_none() -> None:
    """Case B11."""
    shelf = Shelf(lookahead_pools={"eagle": 1})
    request = shelf.start(TEXT, committed=16)
    shelf.commit(request, 16, eagle=16)
    hit = shelf.cache.match(TEXT, b"", ["eagle"])
    assert (hit.tokens, hit.pool_tokens) == (16, {"eagle": 12})


def test_a_lookahead_pool_is_not_valid_where_another_token_followed() -> None:
    """The page's tokens are the same, but the drafter had seen another text behind them."""
    shelf = Shelf(lookahead_pools={"eagle": 1})
    shelf.commit(shelf.start(TEXT, committed=20), 20, eagle=20)
    other = (*TEXT[:8], *range(70, 82))
    shelf.commit(shelf.start(other, committed=20), 20, eagle=0)
    hit = shelf.cache.match((*other, 0), b"", ["eagle"])
    assert (hit.tokens, hit.pool_tokens) == (20, {"eagle": 4})


def test_what_a_hit_gave_is_known_until_the_request_ends() -> None:
    shelf = Shelf()
    shelf.end(shelf.start(TEXT, committed=20))
    request = shelf.start(TEXT, committed=16)
    assert (shelf.account.hit(request).tokens, request.cached_tokens) == (16, 16)
    shelf.end(request)
    assert shelf.account.hit(request).tokens == 0


def test_counts_are_those_of_admitted_requests() -> None:
    shelf = Shelf()
    shelf.end(shelf.start(TEXT, committed=20))
    shelf.start(TEXT[:10], committed=10)
    shelf.cached(TEXT)  # a mere question
    counts = shelf.cache.counts
    assert (counts.looked_up_tokens, counts.hit_tokens) == (30, 8)


def test_a_cache_that_is_off_keeps_nothing() -> None:
    shelf = Shelf(enabled=False)
    shelf.end(shelf.start(TEXT, committed=20))
    assert shelf.cached(TEXT) == 0
    assert shelf.account.free_pages == shelf.account.capacity_pages
    assert shelf.cache.counts.looked_up_tokens == 0


def test_cached_pages_are_for_requests_that_own_nothing_yet() -> None:
    shelf = Shelf()
    request = shelf.start(TEXT, committed=16)
    with pytest.raises(ValueError, match="without pages"):
        shelf.account.adopt(request, shelf.cache.match(TEXT, b""))

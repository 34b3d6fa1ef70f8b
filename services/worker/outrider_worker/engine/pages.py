"""Page accounting: who holds which pages of the KV pool. Holds no tensors.

Page 0 is the null page: padding rows write there and nobody owns it. Every other page is free, held
by one or more requests, or idle: kept by the prefix cache for whoever comes with the same tokens.
Idle pages count as room, for they are given away when the free ones run out (docs/adr/0009).

A page may be given away while a round in flight still writes to it for a request that has ended:
its new owner's work is ordered after that round on the device.
"""

from collections.abc import Mapping, Sequence

from outrider_worker.engine.prefix_cache import NO_HIT, PrefixCache, PrefixHit
from outrider_worker.engine.types import NULL_PAGE, Request


class PageAccount:
    """The free list, the number of holders of each page, and what the prefix cache keeps."""

    def __init__(self, pages: int, page_tokens: int, cache: PrefixCache | None = None) -> None:
        """`pages` counts the null page, as the pool does."""
        if pages < 2:
            raise ValueError("a KV pool needs at least one page beside the null page")
        self.page_tokens = page_tokens
        self.capacity_pages = pages - 1
        self.cache = cache or PrefixCache(page_tokens)
        self._free = list(range(pages - 1, NULL_PAGE, -1))
        self._holders = [0] * pages
        self._hits: dict[Request, PrefixHit] = {}

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def cached_pages(self) -> int:
        """Pages that only the prefix cache keeps."""
        return self.cache.idle_pages

    @property
    def spare_pages(self) -> int:
        """Pages that can be had: free ones, and idle ones by eviction."""
        return self.free_pages + self.cached_pages

    @property
    def used_pages(self) -> int:
        """Pages that requests hold."""
        return self.capacity_pages - self.spare_pages

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` slots."""
        return -(-tokens // self.page_tokens)

    def fits_ever(self, tokens: int) -> bool:
        return self.pages_for(tokens) <= self.capacity_pages

    def cost_pages(self, slots: int, hit: PrefixHit) -> int:
        """Spare pages used up by a new request of `slots` slots that begins with a hit."""
        return self.pages_for(slots) - sum(self._holders[page] > 0 for page in hit.pages)

    def hit(self, request: Request) -> PrefixHit:
        """What the prefix cache gave the request when it was admitted."""
        return self._hits.get(request, NO_HIT)

    def adopt(self, request: Request, hit: PrefixHit) -> None:
        """Begin a request that owns nothing with the pages of a hit."""
        if request.pages:
            raise ValueError("only a request without pages can begin with cached ones")
        for page in hit.pages:
            if self._holders[page] == 0:
                self.cache.take_idle(page)
            self._holders[page] += 1
        request.pages.extend(hit.pages)
        request.committed = request.reserved = request.cached_tokens = hit.tokens
        self._hits[request] = hit
        self.cache.adopted(request, hit)

    def try_reserve(self, request: Request, slots: int, scratch: int = 0) -> bool:
        """Let the request own slots 0…slots−1, at most up to its limit; what it has it keeps.

        scratch: slots behind these, and if need be behind its limit, that a drafter writes and
        nobody keeps.

        False, and nothing has changed, if there are not enough spare pages.
        """
        slots = min(slots, request.limit_tokens) + scratch
        lacking = self.pages_for(slots) - len(request.pages)
        if lacking > self.spare_pages:
            return False
        for _ in range(lacking):
            page = self._free.pop() if self._free else self.cache.evict()
            self._holders[page] = 1
            request.pages.append(page)
        request.reserved = max(request.reserved, slots)
        return True

    def trim(self, request: Request, slots: int) -> None:
        """Give back what is reserved beyond `slots`, never what rounds in flight may commit."""
        request.reserved = min(request.reserved, max(slots, request.committed + request.ahead))
        kept = self.pages_for(request.reserved)
        self._let_go(request.pages[kept:])
        del request.pages[kept:]

    def publish(self, request: Request, pools: Mapping[str, int] | None = None) -> None:
        """Put the request's full, committed pages into the prefix cache; cheap when none is new.

        `pools`: for each drafter's pool, how many of its tokens are valid there.
        """
        self._free.extend(self.cache.publish(request, pools or {}))

    def release(self, request: Request) -> None:
        """Take everything back. Published pages stay in the cache unless others hold them."""
        self._let_go(request.pages)
        request.pages.clear()
        request.committed = request.ahead = request.reserved = 0
        self._hits.pop(request, None)
        self.cache.forget(request)

    def slot(self, request: Request, position: int) -> int:
        """Where the K/V of `position` lives in the pool."""
        if position >= request.reserved:
            raise IndexError(f"position {position} is beyond {request.reserved} reserved slots")
        page, offset = divmod(position, self.page_tokens)
        return request.pages[page] * self.page_tokens + offset

    def check(self, requests: Sequence[Request]) -> None:
        """Raise AssertionError unless every page has exactly one state (tests, idle checks)."""
        holders = [0] * len(self._holders)
        for request in requests:
            assert len(set(request.pages)) == len(request.pages), "a page is held twice by one"
            for page in request.pages:
                holders[page] += 1
            needed = min(request.committed + request.ahead, request.limit_tokens)
            assert needed <= request.reserved <= len(request.pages) * self.page_tokens
        assert holders == self._holders, "holders are counted wrongly"
        assert holders[NULL_PAGE] == 0, "the null page is held"
        held = [page for page, count in enumerate(holders) if count]
        idle = [page for page in range(len(holders)) if self.cache.is_idle(page)]
        everything = sorted([*held, *idle, *self._free])
        assert everything == list(range(1, self.capacity_pages + 1)), "pages lost or in two states"
        assert self.cache.published_pages <= len(held) + len(idle)
        self.cache.check()

    def _let_go(self, pages: Sequence[int]) -> None:
        """Drop one holder of each page, the last page first: the cache evicts in this order."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] == 0 and not self.cache.keep_idle(page):
                self._free.append(page)

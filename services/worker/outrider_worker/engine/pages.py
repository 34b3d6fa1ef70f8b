"""Page accounting: who owns which pages of the KV pool. Holds no tensors.

Page 0 is the null page: padding rows write there and nobody owns it. A request *promises* itself
all the pages it can ever need when it is admitted and takes them one by one as its reserved length
grows, so that taking can never fail half-way (docs/adr/0005).
"""

from outrider_worker.engine.types import NULL_PAGE, Request


class PageAccount:
    """The free list and the promises."""

    def __init__(self, pages: int, page_tokens: int) -> None:
        """`pages` counts the null page, as the pool does."""
        if pages < 2:
            raise ValueError("a KV pool needs at least one page beside the null page")
        self.page_tokens = page_tokens
        self.capacity_pages = pages - 1
        self._free = list(range(pages - 1, NULL_PAGE, -1))
        self._promised: dict[int, int] = {}

    @property
    def used_pages(self) -> int:
        return self.capacity_pages - len(self._free)

    @property
    def promised_pages(self) -> int:
        return sum(self._promised.values())

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` slots."""
        return -(-tokens // self.page_tokens)

    def fits_ever(self, tokens: int) -> bool:
        return self.pages_for(tokens) <= self.capacity_pages

    def fits_now(self, tokens: int) -> bool:
        return self.promised_pages + self.pages_for(tokens) <= self.capacity_pages

    def promise(self, request: Request) -> None:
        """Set aside what the request can need at most."""
        if not self.fits_now(request.limit_tokens):
            raise ValueError("promised more pages than there are")
        self._promised[id(request)] = self.pages_for(request.limit_tokens)

    def reserve(self, request: Request, slots: int) -> None:
        """Let the request own slots 0…slots−1; what it has it keeps."""
        slots = min(slots, request.limit_tokens)
        while len(request.pages) < self.pages_for(slots):
            request.pages.append(self._free.pop())
        request.reserved = max(request.reserved, slots)

    def release(self, request: Request) -> None:
        """Take everything back, promises and the whole reserved range."""
        self._free.extend(reversed(request.pages))
        request.pages.clear()
        request.committed = request.reserved = 0
        self._promised.pop(id(request), None)

    def slot(self, request: Request, position: int) -> int:
        """Where the K/V of `position` lives in the pool."""
        if position >= request.reserved:
            raise IndexError(f"position {position} is beyond {request.reserved} reserved slots")
        page, offset = divmod(position, self.page_tokens)
        return request.pages[page] * self.page_tokens + offset

    def check(self, requests: list[Request]) -> None:
        """Raise AssertionError unless every page has exactly one owner (tests, idle checks)."""
        owned = [page for request in requests for page in request.pages]
        everything = sorted([*owned, *self._free])
        assert everything == list(range(1, self.capacity_pages + 1)), "pages lost or owned twice"
        for request in requests:
            assert request.committed <= request.reserved <= len(request.pages) * self.page_tokens
            assert len(request.pages) <= self._promised[id(request)]
        assert self.promised_pages <= self.capacity_pages

"""Who of the waiting line is let in. Pure Python over request records.

In the line's order (`line`): the next one enters when there is room for all its known tokens and a
page to grow into, and nobody overtakes it for memory. One case is passed over: a request whose
beginning is just being computed for another one waits until it can be taken from the prefix cache,
so that the choices of one prompt prefill it once. What it needs is set aside meanwhile.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.prefix_cache import PrefixHit
from outrider_worker.engine.types import Request

PoolOf = Callable[[Request], str | None]
"""The drafter whose pool has to hold a request's cached beginning, if one has to."""


def no_pool(_request: Request) -> str | None:
    """A PoolOf for a worker without such drafters."""
    return None


@dataclass(frozen=True, slots=True)
class _Awaited:
    """The request that computes a beginning, in which epoch, and how long the beginning is."""

    source: Request
    epoch: int
    tokens: int

    @property
    def pending(self) -> bool:
        return self.source.epoch == self.epoch and self.source.committed < self.tokens


class Admission:
    """Takes room for those who may enter, and remembers who waits for whose beginning."""

    def __init__(self, pages: PageAccount) -> None:
        self._pages = pages
        self._awaited: dict[Request, _Awaited] = {}

    def enter(
        self,
        waiting: Iterable[Request],
        running: Sequence[Request],
        seats: int,
        pool_of: PoolOf = no_pool,
    ) -> list[Request]:
        """Let in who may enter; they own the slots of all their known tokens then.

        Args:
            waiting: the line, next one first; it is not changed.
            running: whose beginnings may be worth waiting for.
            seats: how many may enter at most.
            pool_of: asked once for each who may, just before it does.
        """
        entered: list[Request] = []
        set_aside_pages = passed_over = 0
        for request in waiting:
            if len(entered) + passed_over == seats:
                break
            if self._awaits_prefix(request, [*running, *entered]):
                passed_over += 1
                set_aside_pages += self._pages.pages_for(self._first_slots(request))
            elif self._begin(request, set_aside_pages, pool_of):
                entered.append(request)
            else:
                break
        return entered

    def forget(self, request: Request) -> None:
        """The request has left the line."""
        self._awaited.pop(request, None)

    def _begin(self, request: Request, set_aside_pages: int, pool_of: PoolOf) -> bool:
        """Take the room of a request's known tokens; False if there is not enough."""
        hit = self._hit(request, pool_of(request))
        needed_pages = self._pages.cost_pages(self._first_slots(request), hit)
        if needed_pages + set_aside_pages > self._pages.spare_pages:
            return False
        self._pages.adopt(request, hit)
        self._pages.try_reserve(request, len(request.token_ids))
        return True

    def _hit(self, request: Request, pool: str | None) -> PrefixHit:
        """What the cache has of its beginning, as far as its drafter's state is there too.

        The rest is computed again: a drafter that lacks a part of the text drafts badly to its end.
        """
        cache, salt = self._pages.cache, request.spec.tenant_salt
        if pool is None:
            return cache.match(request.token_ids, salt)
        return cache.match(request.token_ids, salt, (pool,)).cut_to(pool, cache.page_tokens)

    def _first_slots(self, request: Request) -> int:
        """Room to start with: what is known and a page more, if it can ever need that."""
        return min(len(request.token_ids) + self._pages.page_tokens, request.limit_tokens)

    def _awaits_prefix(self, request: Request, others: Sequence[Request]) -> bool:
        """True while more of its beginning is under way than the cache has."""
        if not self._pages.cache.enabled:
            return False
        awaited = self._awaited.get(request)
        if awaited is not None and awaited.pending:
            return True
        self.forget(request)
        common, source = max(
            ((self._coming_tokens(other, request), other) for other in others),
            key=lambda found: found[0],
            default=(0, request),
        )
        if common == 0 or common <= self._cached_tokens(request):
            return False
        self._awaited[request] = _Awaited(source, source.epoch, common)
        return True

    def _cached_tokens(self, request: Request) -> int:
        return self._pages.cache.match(request.token_ids, request.spec.tenant_salt).tokens

    def _coming_tokens(self, source: Request, request: Request) -> int:
        """Tokens in whole pages that both begin with, if the source has not committed them all."""
        if source.spec.tenant_salt != request.spec.tenant_salt:
            return 0
        page, end = self._pages.page_tokens, 0
        usable = min(len(source.token_ids), len(request.token_ids) - 1)
        if usable - usable % page <= source.committed:
            return 0  # whatever they share is computed: nothing to compare, round after round
        while end + page <= usable and (
            source.token_ids[end : end + page] == request.token_ids[end : end + page]
        ):
            end += page
        return end if end > source.committed else 0

"""Which pages hold the K/V of which beginnings: a tree of published pages. Holds no tensors.

A page is found by its parent page and by its own tokens, compared whole, so that no two texts can
be taken for each other; every tenant salt has a tree of its own. Idle pages (published, held by no
request) stay until room is needed and are evicted least recently used first.

The cache does not know the free list nor who holds a page: `pages.PageAccount` tells it when the
last holder lets go of a page and when the first one takes it again.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from outrider_worker.engine.types import NULL_PAGE, Request


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The pages of a known beginning.

    pages: in order; their K/V is valid for the target.
    tokens: how many tokens they hold.
    pool_tokens: for each drafter's pool asked for, how many of them are valid there too.
    cut_tokens: how many more the target had, that a drafter lacked.
    """

    pages: tuple[int, ...] = ()
    tokens: int = 0
    pool_tokens: Mapping[str, int] = field(default_factory=dict)
    cut_tokens: int = 0

    def cut_to(self, pool: str, page_tokens: int) -> "PrefixHit":
        """The part of it that is valid in a drafter's pool as well."""
        tokens = self.pool_tokens[pool]
        pages = self.pages[: tokens // page_tokens]
        return PrefixHit(pages, tokens, self.pool_tokens, self.tokens - tokens)


NO_HIT = PrefixHit()


@dataclass(slots=True)
class PrefixCounts:
    """Counters since the start: tokens of admitted requests, and of those the tokens found.

    cut_tokens were there for the target and are computed again, for a drafter lacked them.
    """

    looked_up_tokens: int = 0
    hit_tokens: int = 0
    cut_tokens: int = 0
    evicted_pages: int = 0


@dataclass(slots=True, eq=False)
class _Node:
    """A published page, or the root of a salt's tree, which has the null page.

    key: the page's tokens, or the bytes of the salt.
    successors: drafters' pools the page is valid in, each with the tokens behind the page that its
        state was computed with.
    """

    page: int
    parent: "_Node | None"
    key: tuple[int, ...]
    children: dict[tuple[int, ...], "_Node"] = field(default_factory=dict)
    successors: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Progress:
    """How many pages of a request are published, in all and as valid for drafters' pools."""

    pages: int = 0
    pool_pages: dict[str, int] = field(default_factory=dict)


class PrefixCache:
    """Published pages by content, and the idle ones in order of their last use.

    A request publishes only behind pages that it holds itself. Hence who holds a page holds all
    pages before it, lets go of them last, and the page that is idle for longest is never followed
    by another: eviction by age alone evicts leaves first.
    """

    def __init__(
        self,
        page_tokens: int,
        lookahead_pools: Mapping[str, int] | None = None,
        *,
        enabled: bool = True,
    ) -> None:
        """`lookahead_pools`: drafters whose state at a position depends on tokens behind it, each
        with how many; at most a page."""
        self.page_tokens = page_tokens
        self.enabled = enabled
        self.counts = PrefixCounts()
        self._lookahead_pools = dict(lookahead_pools or {})
        self._roots: dict[tuple[int, ...], _Node] = {}
        self._by_page: dict[int, _Node] = {}
        self._idle: OrderedDict[int, _Node] = OrderedDict()
        self._progress: dict[Request, _Progress] = {}

    @property
    def idle_pages(self) -> int:
        """Published pages that nobody holds: all of them can be evicted."""
        return len(self._idle)

    @property
    def published_pages(self) -> int:
        return len(self._by_page)

    def match(
        self, token_ids: Sequence[int], salt: bytes, pools: Collection[str] = ()
    ) -> PrefixHit:
        """The longest known beginning in whole pages.

        It is at most len(token_ids) − 1 tokens long, for the last one has to be fed to emit the
        next. A lookahead pool counts only up to the page before the last: what its drafter needs
        of the target at the last cached position is not kept.
        """
        nodes = self._walk(token_ids, salt)
        tokens = len(nodes) * self.page_tokens
        pool_tokens = {pool: self._valid_tokens(nodes, token_ids, pool) for pool in pools}
        return PrefixHit(tuple(node.page for node in nodes), tokens, pool_tokens)

    def adopted(self, request: Request, hit: PrefixHit) -> None:
        """A request took the pages of a hit; what follows is published behind them."""
        self._progress[request] = _Progress(len(hit.pages))
        if self.enabled:
            self.counts.looked_up_tokens += len(request.token_ids)
            self.counts.hit_tokens += hit.tokens
            self.counts.cut_tokens += hit.cut_tokens

    def publish(self, request: Request, pools: Mapping[str, int]) -> list[int]:
        """Make the request's pages known whose tokens are all committed.

        Where the same tokens are published already, an idle page is replaced by the request's own
        one; a page that others hold stays, and the request goes on publishing once it is idle.

        Args:
            pools: for each drafter's pool, the tokens of this request that are valid there.

        Returns:
            Pages that were replaced and belong to nobody now.
        """
        if not self.enabled:
            return []
        progress = self._progress.setdefault(request, _Progress())
        replaced: list[int] = []
        while (progress.pages + 1) * self.page_tokens <= request.committed:
            if not self._publish_page(request, progress.pages, replaced):
                break
            progress.pages += 1
        for pool, tokens in pools.items():
            self._mark_valid(request, progress, pool, tokens)
        return replaced

    def forget(self, request: Request) -> None:
        """The request lets go of its pages; its next publication starts anew."""
        self._progress.pop(request, None)

    def keep_idle(self, page: int) -> bool:
        """Keep a page that its last holder lets go of; False if it is not published."""
        node = self._by_page.get(page)
        if node is None:
            return False
        self._idle[page] = node
        return True

    def is_idle(self, page: int) -> bool:
        return page in self._idle

    def take_idle(self, page: int) -> None:
        """An idle page has a holder again."""
        del self._idle[page]

    def evict(self) -> int:
        """Forget the page that is idle for longest, and give it away. KeyError if none is."""
        page, node = self._idle.popitem(last=False)
        del self._by_page[page]
        self._detach(node)
        self.counts.evicted_pages += 1
        return page

    def check(self) -> None:
        """Raise AssertionError unless tree, page index and idle order agree (tests)."""
        seen = [node for root in self._roots.values() for node in _below(root)]
        assert {node.page: node for node in seen} == self._by_page, "tree and index differ"
        assert len(seen) == len(self._by_page), "a page is published twice"
        assert all(self._by_page.get(page) is node for page, node in self._idle.items())
        assert all(root.children for root in self._roots.values()), "an empty tree is kept"
        order = {page: place for place, page in enumerate(self._idle)}
        for node in seen:
            for child in node.children.values():
                assert child.parent is node
                assert (
                    node.page not in order or order.get(child.page, len(order)) < order[node.page]
                )

    def _walk(self, token_ids: Sequence[int], salt: bytes) -> list[_Node]:
        nodes: list[_Node] = []
        node = self._roots.get(tuple(salt))
        while node is not None and (len(nodes) + 1) * self.page_tokens < len(token_ids):
            node = node.children.get(self._key(token_ids, len(nodes)))
            if node is not None:
                nodes.append(node)
        return nodes

    def _valid_tokens(self, nodes: Sequence[_Node], token_ids: Sequence[int], pool: str) -> int:
        """Tokens from the first on whose state in a drafter's pool is that of this very text."""
        lookahead = self._lookahead_pools.get(pool, 0)
        last = max(0, len(nodes) - 1) if lookahead else len(nodes)
        for place, node in enumerate(nodes[:last]):
            if node.successors.get(pool) != self._behind(token_ids, place, lookahead):
                return place * self.page_tokens
        return last * self.page_tokens

    def _publish_page(self, request: Request, place: int, replaced: list[int]) -> bool:
        """Publish the request's page at `place`; False if others hold one of the same tokens."""
        parent = self._node_before(request, place)
        page, key = request.pages[place], self._key(request.token_ids, place)
        twin = parent.children.get(key)
        if twin is None:
            node = parent.children[key] = _Node(page, parent, key)
        elif twin.page in self._idle:
            del self._idle[twin.page], self._by_page[twin.page]
            replaced.append(twin.page)
            node = twin
            node.page = page
            node.successors.clear()
        else:
            return False
        self._by_page[page] = node
        return True

    def _mark_valid(self, request: Request, progress: _Progress, pool: str, tokens: int) -> None:
        """Note the published pages that a drafter's pool covers by now."""
        lookahead = self._lookahead_pools.get(pool, 0)
        done = progress.pool_pages.get(pool, 0)
        # With a longer look ahead, the last positions wait for what comes behind the next one.
        settled = max(0, tokens - max(0, lookahead - 1)) // self.page_tokens
        while done < min(progress.pages, settled):
            successors = self._behind(request.token_ids, done, lookahead)
            if len(successors) < lookahead:
                break
            self._by_page[request.pages[done]].successors[pool] = successors
            done += 1
        progress.pool_pages[pool] = done

    def _behind(self, token_ids: Sequence[int], place: int, count: int) -> tuple[int, ...]:
        """The first tokens behind the page at `place`, `count` of them as far as they are known."""
        end = (place + 1) * self.page_tokens
        return tuple(token_ids[end : end + count])

    def _node_before(self, request: Request, place: int) -> _Node:
        if place > 0:
            return self._by_page[request.pages[place - 1]]
        salt = tuple(request.spec.tenant_salt)
        return self._roots.setdefault(salt, _Node(NULL_PAGE, None, salt))

    def _detach(self, node: _Node) -> None:
        """Cut a leaf off, and its tree's root if nothing is left on it."""
        parent = node.parent
        assert parent is not None
        assert not node.children, "an idle page is followed by a published one"
        del parent.children[node.key]
        if parent.parent is None and not parent.children:
            del self._roots[parent.key]

    def _key(self, token_ids: Sequence[int], place: int) -> tuple[int, ...]:
        start = place * self.page_tokens
        return tuple(token_ids[start : start + self.page_tokens])


def _below(root: _Node) -> list[_Node]:
    found = list(root.children.values())
    for node in found:
        found.extend(node.children.values())
    return found

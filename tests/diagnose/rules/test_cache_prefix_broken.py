"""Each condition of cache_prefix_broken, from both sides."""

import pytest

from diagnose.hypotheses.cache_prefix_broken import CachePrefixBroken
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import events, judged, says

RULE = CachePrefixBroken()


def asked(
    queries: float | None = 1000, hits: float | None = 0, info: dict[str, str] | None = None, **counters: float
) -> Signals:
    named = {"prefix_query_tokens": queries, "prefix_hit_tokens": hits, **counters}
    return make_signals(counters={name: n for name, n in named.items() if n is not None}, info=info or {})


USEFUL = asked(1000, 200)


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (asked(1000, 99, evictions=0), USEFUL, "supported +0.099 +0"),
        (asked(1000, 100, evictions=0), USEFUL, "refuted -0.1"),
        (asked(1000, 0, evictions=0), asked(1000, 199), "refuted -0"),
        (asked(1000, 99), USEFUL, "undetermined +0.099 ?evictions"),
        (asked(1000, 99, evictions=100), USEFUL, "undetermined +0.099 -100 ?whether"),
        (asked(1000, 99, evictions=100, ghost_hits=1), USEFUL, "supported +0.099 +100"),
        (asked(1000, 99, evictions=100, ghost_hits=2), USEFUL, "undetermined +0.099 -100 ?whether"),
        (asked(1000, 99, evictions=100, ghost_hits=19), USEFUL, "undetermined +0.099 -100 ?whether"),
        (asked(1000, 99, evictions=100, ghost_hits=20), USEFUL, "refuted +0.099 -100"),
        (asked(1000, 99, evictions=0, ghost_hits=20), USEFUL, "supported +0.099 +0"),
        (asked(1000, 99, evictions=1), USEFUL, "undetermined +0.099 -1 ?whether"),
        (asked(1000, 1000), USEFUL, "refuted -1"),
        # What is not known of one of the windows.
        (asked(1000, 99), None, "undetermined .0.099 ?baseline"),
        (asked(1000, 99), asked(999, 900), "undetermined .0.099 ?baseline"),
        (asked(1000, 99), asked(1000, 1001), "undetermined .0.099 ?baseline"),
        (asked(1000, 99), asked(1000, None), "undetermined .0.099 ?baseline"),
        (asked(999, 99), USEFUL, "refuted -"),
        (asked(None, 99), USEFUL, "undetermined ?prompt"),
        (asked(1000, None), USEFUL, "undetermined ?prompt"),
        (asked(1000, 1001), USEFUL, "undetermined ?prompt"),
        (asked(999, None), None, "refuted -"),
    ],
)
def test_the_hit_rate_against_the_baselines(now, before, expected):
    assert says(RULE, now, before) == expected


@pytest.mark.parametrize(
    ("cache", "expected"),
    [("false", "not_applicable ."), ("true", "supported +0.099 +0"), (None, "supported +0.099 +0")],
)
def test_a_cache_that_is_off_breaks_nothing(cache, expected):
    info = {} if cache is None else {"prefix_cache": cache}
    assert says(RULE, asked(1000, 99, info, evictions=0), USEFUL) == expected


def test_an_engine_that_says_so_is_believed():
    told = events("leak", "full_reprocess", "full_reprocess")
    assert says(RULE, asked(1000, 999), USEFUL, events=told) == "supported +2"


STORE = "?token ?prompt"


@pytest.mark.parametrize(
    ("query", "hit", "stored", "expected"),
    [
        (1000, 250, None, f"undetermined .0.25 {STORE}"),
        (1000, 0, 500, f"undetermined .0 {STORE}"),
        (0, 0, None, "undetermined ?prompt"),
        (None, 0, None, "undetermined ?prompt"),
        (1000, None, 500, "undetermined ?prompt"),
    ],
)
def test_a_store_beside_the_engine(query, hit, stored, expected):
    named = {"external_query_tokens": query, "external_hit_tokens": hit, "external_stored_tokens": stored}
    signals = asked(None, None, **{name: n for name, n in named.items() if n is not None})
    assert says(RULE, signals) == expected
    if expected.startswith("undetermined ."):
        assert ("were stored" in judged(RULE, signals).evidence[0].text) == bool(stored)


def test_ghost_hits_are_told_beside_evictions_only():
    some = judged(RULE, asked(1000, 99, evictions=100, ghost_hits=1), USEFUL).evidence[1].text
    none = judged(RULE, asked(1000, 99, evictions=0, ghost_hits=1), USEFUL).evidence[1].text
    unknown = judged(RULE, asked(1000, 99, evictions=100), USEFUL).evidence[1].text
    assert some.endswith("100 cached blocks were evicted in the window, 1 were asked for again")
    assert none.endswith("0 cached blocks were evicted in the window")
    assert unknown.endswith("100 cached blocks were evicted in the window")

"""The seed's interface: its rules, its exceptions, its floats; equal to the rules written down in ``naive``."""

from __future__ import annotations

import collections
import math
import random
import types
from pathlib import Path
from typing import Any

import pytest

import naive
import peakledger as pl


def state(name: str = "s", category: str = "activation", size: Any = 1.0, **other: Any) -> dict[str, Any]:
    whole = {
        "name": name,
        "category": category,
        "size_mb": size,
        "start_phase": "forward",
        "end_phase": "backward",
        "device": "gpu",
        "persistent": False,
    }
    return {**whole, **other}


STEP = [
    state("weights", "parameter", 512.0, start_phase="load", end_phase="zero_grad", persistent=True),
    state("moments", "optimizer_state", 1024.0, start_phase="load", end_phase="zero_grad", persistent=True),
    state("hidden", size=256.0),
    state("scratch", "workspace", 64.0, end_phase="forward"),
    state("grads", "gradient", 512.0, start_phase="backward", end_phase="update"),
    state("bucket", "communication_buffer", 32.0, start_phase="backward"),
    state("parked", size=4096.0, device="cpu"),
]


def test_words_are_those_of_the_seed() -> None:
    assert pl.PHASES == naive.ORDER and isinstance(pl.PHASES, list)
    assert pl.VALID_CATEGORIES == naive.KINDS and isinstance(pl.VALID_CATEGORIES, set)


def test_a_step() -> None:
    records = pl.summarize_phase_memory(STEP)
    assert [record["total_mb"] for record in records] == [1536.0, 1856.0, 1792.0, 2336.0, 2048.0, 1536.0]
    assert records[1]["active_states"] == ["weights", "moments", "hidden", "scratch"]
    assert records == naive.summary(STEP)
    assert pl.find_peak_overlap(records) == {
        "peak_phase": "backward",
        "peak_mb": 2336.0,
        "contributors": ["moments", "grads", "weights", "hidden", "bucket"],
    }
    recomputed = [{**one, "end_phase": "forward"} if one["name"] == "hidden" else one for one in STEP]
    offloaded = [{**one, "device": "cpu"} if one["name"] == "hidden" else one for one in STEP]
    candidates = {"recomputed": recomputed, "offloaded": offloaded, "same": STEP}
    compared = pl.compare_peak_candidates(STEP, candidates)
    assert compared == naive.comparison(STEP, candidates)
    assert compared["candidates"]["recomputed"] == {
        "peak_phase": "backward",
        "peak_mb": 2080.0,
        "memory_saving_mb": 256.0,
    }


BROKEN: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"size_mb": -0.5}, ValueError),
    ({"size_mb": -math.inf}, ValueError),
    ({"size_mb": "1"}, TypeError),
    ({"size_mb": None}, TypeError),
    ({"size_mb": True}, TypeError),
    ({"size_mb": 10**400}, OverflowError),
    ({"category": "cache"}, ValueError),
    ({"category": ["activation"]}, TypeError),
    ({"category": None}, ValueError),
    ({"device": "cuda"}, ValueError),
    ({"device": ["gpu"]}, TypeError),
    ({"start_phase": "warmup"}, ValueError),
    ({"end_phase": 3}, ValueError),
    ({"end_phase": ["backward"]}, ValueError),
    ({"start_phase": "\ud800"}, ValueError),
    ({"start_phase": "update"}, ValueError),
    ({"persistent": 1}, TypeError),
    ({"persistent": None}, TypeError),
]


@pytest.mark.parametrize(("change", "error"), BROKEN, ids=lambda value: repr(value)[:40])
def test_what_breaks_a_rule(change: dict[str, Any], error: type[Exception]) -> None:
    broken = state(**change)
    for check in (naive.check, pl.validate_state_lifecycle):
        with pytest.raises(error) as raised:
            check(broken)
        assert raised.type is error
    with pytest.raises(error):
        pl.summarize_phase_memory([*STEP, broken])
    with pytest.raises(error):
        pl.compare_peak_candidates(STEP, {"broken": [broken]})


@pytest.mark.parametrize("field", sorted(naive.FIELDS))
def test_a_field_is_missing(field: str) -> None:
    lacking = state()
    del lacking[field]
    for held in (lacking, types.MappingProxyType(lacking)):
        with pytest.raises(KeyError, match=field):
            pl.validate_state_lifecycle(held)


def test_of_several_faults_the_seed_tells_the_first() -> None:
    order = ["size_mb", "category", "device", "start_phase", "persistent"]
    faults = {"size_mb": "x", "category": "x", "device": "x", "start_phase": "x", "persistent": "x"}
    for at in range(len(order)):
        broken = state(**{field: faults[field] for field in order[at:]})
        with pytest.raises((TypeError, ValueError), match=order[at]):
            pl.validate_state_lifecycle(broken)


@pytest.mark.parametrize("not_a_state", [None, 3, [], "state"])
def test_no_state_at_all(not_a_state: Any) -> None:
    with pytest.raises((TypeError, KeyError)) as theirs:
        naive.check(not_a_state)
    with pytest.raises(theirs.type):
        pl.validate_state_lifecycle(not_a_state)


def test_nothing_to_look_at() -> None:
    for empty in ([], ()):
        with pytest.raises(ValueError):
            pl.find_peak_overlap(empty)
    with pytest.raises(ValueError):
        pl.compare_peak_candidates(STEP, {})
    with pytest.raises(ValueError):
        pl.compare_peak_candidates(STEP, {"": STEP})
    with pytest.raises(KeyError):
        pl.find_peak_overlap([{"phase": "load"}])
    records = pl.summarize_phase_memory([])
    assert repr(records) == repr(naive.summary([])), "an empty sum is the integer 0, as Python's"
    assert pl.find_peak_overlap(records) == naive.peak(records)


class Half(float):
    """A float of another kind."""


class Word(str):
    """A str of another kind."""


def test_what_python_takes_for_the_same() -> None:
    odd = [
        state(name=7, size=3, extra=[1, 2]),
        state(name=None, size=Half(0.5), category=Word("gradient"), device=Word("gpu")),
        state(name=Word("word"), start_phase=Word("load"), size=2**60),
        state(name="\ud800", size=math.inf),
        state(name="nan", size=math.nan, end_phase="forward"),
        collections.OrderedDict(state(name="ordered", size=0.25)),
        collections.ChainMap({"size_mb": 8.0}, state(name="chained")),
        types.MappingProxyType(state(name="proxy", size=-0.0)),
    ]
    for states in (odd, tuple(odd), dict(enumerate(odd)).values()):
        assert repr(pl.summarize_phase_memory(states)) == repr(naive.summary(list(states)))
    records = [
        {"phase": "b", "total_mb": "7.5", "state_sizes_mb": {"x": 1, "z": "3", "y": 3.0}},
        {"phase": "a", "total_mb": 7.5, "state_sizes_mb": {}},
        {"phase": "c", "total_mb": math.nan},
    ]
    assert pl.find_peak_overlap(records) == naive.peak(records)
    assert pl.find_peak_overlap(records[2:]).keys() == naive.peak(records[2:]).keys()
    assert pl.find_peak_overlap(iter(records)) == naive.peak(records)
    ties = [{"phase": "a", "total_mb": 1, "state_sizes_mb": {3: 1.0, "3": 1.0}}]
    for find in (naive.peak, pl.find_peak_overlap):
        with pytest.raises(TypeError):
            find(ties)


def test_keys_may_stand_in_any_order() -> None:
    turned = [dict(reversed(list(one.items()))) for one in STEP]
    more = [{"note": "first", **one, "other": 1} for one in STEP]
    for states in (turned, more, [*STEP, *turned, *more], [*more, *STEP]):
        assert pl.summarize_phase_memory(states) == naive.summary(states)
        lacking = {key: value for key, value in states[0].items() if key != "device"}
        with pytest.raises(KeyError, match="device"):
            pl.summarize_phase_memory([*states, lacking])
        with pytest.raises(KeyError, match="device"):
            pl.summarize_phase_memory([lacking, *states])


def test_words_may_be_added() -> None:
    """The seed looks at its lists in each call, so a caller's own category works."""
    pl.VALID_CATEGORIES.add("kv_cache")
    try:
        pl.validate_state_lifecycle(state(category="kv_cache"))
    finally:
        pl.VALID_CATEGORIES.discard("kv_cache")
    with pytest.raises(ValueError):
        pl.validate_state_lifecycle(state(category="kv_cache"))


def test_nothing_of_the_callers_is_changed_and_floats_are_kept() -> None:
    size = 0.1 + 0.2
    given = [state("a", size=size), state("a", size=0.1)]
    before = repr(given)
    records = pl.summarize_phase_memory(given)
    assert repr(given) == before
    assert records[1]["state_sizes_mb"] == {"a": 0.1} and records[1]["total_mb"] == size + 0.1
    assert pl.summarize_phase_memory(given[:1])[1]["state_sizes_mb"]["a"] is size


@pytest.mark.parametrize("seed", range(20))
def test_random_ledgers_are_equal_to_the_last_bit(seed: int) -> None:
    chance = random.Random(seed)

    def any_state(index: int) -> dict[str, Any]:
        start, end = sorted((chance.randrange(6), chance.randrange(6)))
        size = chance.choice([chance.random(), chance.random() * 1e16, chance.randrange(1 << 40), 0, 1e300, 0.1])
        return state(
            f"s{index % 50}",
            chance.choice(sorted(naive.KINDS)),
            size,
            start_phase=naive.ORDER[start],
            end_phase=naive.ORDER[end],
            device=chance.choice(["gpu", "gpu", "cpu"]),
            persistent=chance.random() < 0.5,
        )

    states, others = ([any_state(index) for index in range(chance.randrange(200))] for _ in range(2))
    assert repr(pl.summarize_phase_memory(states)) == repr(naive.summary(states))
    compared = pl.compare_peak_candidates(states, {"a": others, "b": states})
    assert repr(compared) == repr(naive.comparison(states, {"a": others, "b": states}))


def test_the_published_tests_pass_as_they_are(shared: Path) -> None:
    """The test functions of the seed's document, run on this package."""
    [document] = (shared / "seed").glob("*.txt")
    text = document.read_text(encoding="utf-8")
    begin = text.index("def _sample_states()")
    end = text.index("\nrun_unified_memory_tests()", begin)
    names: dict[str, Any] = {"Dict": dict, "List": list, **{name: getattr(pl, name) for name in pl.__all__}}
    exec(compile(text[begin:end], document.name, "exec"), names)
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == 4
    names["run_unified_memory_tests"]()

"""Batches: exact ceilings and whole histories, whatever the sizes and however Claude Code tells of them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_toolguard import CircuitOpen, Session
from otel_toolguard.testing.scripts import always_new, for_ever

from . import scripted as s

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


async def read(_said):
    await asyncio.sleep(0)
    return "nothing"


@pytest.mark.parametrize("way", s.WAYS)
@QUICK
@given(
    limit=st.integers(1, 12), sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6), batches=st.booleans(),
    apart=st.booleans(),
)  # fmt: skip
def test_ceiling_is_exact(way, limit, sizes, batches, apart):
    """As many bodies run as the ceiling allows, each call has its answer, and the model is asked no more after it."""
    asked = []
    cli = s.ScriptedCLI(
        lambda turn: [("Read", {"q": f"{turn}.{n}"}) for n in range(sizes[turn % len(sizes)])],
        own={"Read": read}, batches=batches, apart=apart,
    )  # fmt: skip
    told = Session(policy=s.ceiling(limit), on_trip=lambda _: asked.append(cli.asked))
    with told, pytest.raises(CircuitOpen):
        s.run(cli, way)
    assert cli.ran == limit
    assert cli.asked == asked[0]
    calls = sorted(entry[1]["id"] for entry in cli.history if entry[0] == "call")
    assert sorted(entry[1] for entry in s.answers(cli.history)) == calls
    assert sum(not entry[2]["is_error"] for entry in s.answers(cli.history)) == limit


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("in_turn", [True, False])
@QUICK
@given(limit=st.integers(2, 6), batch=st.integers(1, 5))
def test_equal_calls_of_a_turn_are_one_lap(batches, apart, in_turn, limit, batch):
    """Equal calls of one turn come round once, in one message or in several, side by side or one after the other."""
    cli = s.ScriptedCLI(
        for_ever("Read", batch=batch), own={"Read": read}, batches=batches, apart=apart, in_turn=in_turn
    )
    with Session(policy=s.repeat(limit)), pytest.raises(CircuitOpen):
        s.run(cli)
    assert (cli.asked, cli.ran) == (limit, limit * batch)


def test_eight_at_once_at_a_limit_of_six():
    """Of eight calls in one turn six start and two are denied before their bodies."""
    cli = s.ScriptedCLI(always_new("Read", batch=8), own={"Read": read})
    with Session(policy=s.ceiling(6)) as session, pytest.raises(CircuitOpen):
        s.run(cli)
    report = session.report()
    assert (cli.ran, report["calls"], report["refused"], report["in_flight"]) == (6, 6, 2, 0)

"""Agents that start agents that start agents."""

import pytest

from otel_toolguard.core.call import ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit, Stop
from otel_toolguard.core.plugins.depth import Depth
from otel_toolguard.core.state import SessionState

CALL = ToolCall("t", "t:1")
TREE = [("1", None), ("2", "1"), ("3", "2"), ("4", "3")]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_runs_down_to_the_limit_may_call(limit):
    """Depth L runs, depth L + 1 stops the whole tree; another tree goes on."""
    chain, state = Chain([Depth(limit)]), SessionState("s")
    kinds = [type(chain.admit(state, run, CALL, above=above)) for run, above in TREE]
    assert kinds == [Permit] * limit + [Stop] * (4 - limit)
    assert type(chain.admit(state, "1", CALL)) is (Permit if limit == 4 else Stop)
    assert type(chain.admit(state, "other", CALL)) is Permit


@pytest.mark.parametrize(("ceilings", "kind"), [(False, Stop), (True, Permit)])
def test_scope_session_stops_each_later_run(ceilings, kind):
    """With scope session later runs are stopped too, until the ceilings are reset."""
    chain, state = Chain([Depth(1, scope="session")]), SessionState("s")
    for run, above in TREE[:2]:
        last = chain.admit(state, run, CALL, above=above)
    assert (last.trip.scope, last.trip.limit, last.trip.observed) == ("session", 1, 2)
    assert "depth limit = 2 would" in last.trip.why
    assert type(chain.admit(state, "other", CALL)) is Stop
    chain.reset(state, ceilings=ceilings)
    assert type(chain.admit(state, "another", CALL)) is kind

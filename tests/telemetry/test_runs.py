"""What is measured when runs and sessions end, how few series there are, and the views."""

import pytest
from opentelemetry import context

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.decision import Circuit, Refuse, Trip
from otel_toolguard.telemetry import recommended_views

TRIP = Trip(id="t1", rule="repeat_guard", scope="run", session_id="s1", loop_type="exact_repeat", why="w")


def all_metrics(telemetry, call=None, error="OSError"):
    """Everything that is measured, of one call."""
    call = call or ToolCall("search", "search:1", tool_class="read", agent="clerk")
    live = telemetry.start(call, session_id="s1", run_id="r1")
    telemetry.opened(live, TRIP)
    telemetry.end(live, call, Outcome("failed", error_type=error), None, None, seconds=0.1)
    telemetry.refused(None, call, Refuse(Circuit(TRIP), fresh=False, nth=11))
    telemetry.run_ended(calls=1, peak_repeats=0, tripped=False, distinct=1)
    telemetry.session_ended("s1", calls=1, tripped=False)


@pytest.mark.parametrize(("tripped", "outcome"), [(False, "completed"), (True, "tripped")])
def test_a_run_that_ended(told, tripped, outcome):
    """A run's calls are measured by how it ended, and its most laps without a label; one call is one lap."""
    telemetry = told.telemetry()
    telemetry.run_ended(calls=12, peak_repeats=4, tripped=tripped)
    telemetry.run_ended(calls=1, peak_repeats=0, tripped=tripped)
    calls, peaks = (told.points()[f"toolguard.run.{name}"] for name in ("calls", "peak_repeats"))
    assert (dict(calls[0].attributes), calls[0].count, calls[0].sum) == ({"toolguard.outcome": outcome}, 2, 13)
    assert (dict(peaks[0].attributes), peaks[0].count, peaks[0].sum) == ({}, 2, 5)
    assert calls[0].explicit_bounds == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    assert peaks[0].explicit_bounds == (1, 2, 3, 5, 8, 13, 15, 20, 25, 30, 40)


@pytest.mark.parametrize(("tripped", "outcome"), [(False, "completed"), (True, "tripped")])
def test_different_calls_of_a_run(told, tripped, outcome):
    """The share of different calls is measured by how the run ended, and not where it is unknown."""
    telemetry = told.telemetry()
    telemetry.run_ended(calls=8, peak_repeats=4, tripped=tripped, distinct=2)
    telemetry.run_ended(calls=5000, peak_repeats=4, tripped=tripped)
    (point,) = told.points()["toolguard.run.distinct_ratio"]
    assert (dict(point.attributes), point.count, point.sum) == ({"toolguard.outcome": outcome}, 1, 0.25)
    assert point.explicit_bounds == (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def test_a_session_that_ended(told):
    """A session's calls are measured by how it ended, without its id."""
    told.telemetry().session_ended("s1", calls=12, tripped=True)
    (point,) = told.points()["toolguard.session.calls"]
    assert (dict(point.attributes), point.count, point.sum) == ({"toolguard.outcome": "tripped"}, 1, 12)


@pytest.mark.parametrize("calls", [0, -1])
def test_a_run_without_calls_is_none(told, calls):
    """A block in which nothing was called says nothing about runs."""
    telemetry = told.telemetry(events=["toolguard.session.ended"])
    telemetry.run_ended(calls=calls, peak_repeats=0, tripped=False)
    telemetry.session_ended("s1", calls=calls, tripped=False)
    assert (told.points(), told.events()) == ({}, [])


def test_suppressed_ends(told):
    """Where instrumentation is suppressed an end is not told either."""
    token = context.attach(context.set_value("suppress_instrumentation", True))
    telemetry = told.telemetry(events=["toolguard.session.ended"])
    telemetry.run_ended(calls=1, peak_repeats=0, tripped=False)
    telemetry.session_ended("s1", calls=1, tripped=False, report={})
    context.detach(token)
    assert (told.points(), told.events()) == ({}, [])


def test_names_that_somebody_makes_up_do_not_multiply_series(told):
    """10,000 tools, agents and exception classes make less series than an SDK keeps apart, and lose no call."""
    telemetry = told.telemetry()
    for number in range(10_000):
        call = ToolCall(f"tool{number % 5000}", f"x:{number}", agent=f"agent{number % 3000}")
        live = telemetry.start(call, session_id=f"s{number}", run_id=f"r{number}")
        telemetry.end(live, call, Outcome("failed", error_type=f"E{number}"), None, None, seconds=0.1)
    points = told.points()["gen_ai.execute_tool.duration"]
    assert len(points) < 2000
    assert sum(point.count for point in points) == 10_000
    assert {"(other)", "tool0"} <= {point.attributes["gen_ai.tool.name"] for point in points}
    assert {"_OTHER", "E0"} <= {point.attributes["error.type"] for point in points}
    assert not any("otel.metric.overflow" in point.attributes for point in points)


def test_a_tool_that_has_series_keeps_them(told):
    """What was there before the flood is told as itself after it."""
    telemetry, known = told.telemetry(), ToolCall("search", "search:1")

    def once(call):
        live = telemetry.start(call, session_id="s1", run_id="r1")
        telemetry.end(live, call, Outcome("ok"), None, None, seconds=0.1)

    for call in (known, *(ToolCall(f"tool{number}", "x:1") for number in range(2000)), known):
        once(call)
    points = told.points()["gen_ai.execute_tool.duration"]
    assert [point.count for point in points if point.attributes["gen_ai.tool.name"] == "search"] == [2]
    assert told.spans()[-2].attributes["gen_ai.tool.name"] == "tool1999", "the span keeps the name"


def test_recommended_views(told, told_through):
    """With the views every metric has the same points as without: they name what we emit, and hold it to that."""
    viewed = told_through(recommended_views())
    for here in (told, viewed):
        all_metrics(here.telemetry())
    with_views, without = viewed.points(), told.points()
    assert set(with_views) == set(without)
    for name, points in without.items():
        assert [dict(point.attributes) for point in with_views[name]] == [dict(point.attributes) for point in points]
        bounds = [getattr(point, "explicit_bounds", None) for point in points]
        assert [getattr(point, "explicit_bounds", None) for point in with_views[name]] == bounds


def test_views_without_agents(told_through):
    """Where agents are named anew for each run, a view leaves their names out."""
    viewed = told_through(recommended_views(agents=False, series=10))
    telemetry = viewed.telemetry()
    for number in range(5):
        all_metrics(telemetry, ToolCall("search", "search:1", agent=f"agent{number}"))
    (point,) = viewed.points()["gen_ai.execute_tool.duration"]
    assert "gen_ai.agent.name" not in point.attributes


def test_views_leave_other_people_s_metrics_alone(told_through):
    """A view is for our own scope only."""
    viewed = told_through(recommended_views())
    meter = viewed.metering.get_meter("somebody")
    meter.create_histogram("gen_ai.execute_tool.duration").record(1, {"a": "b"})
    (point,) = viewed.points()["gen_ai.execute_tool.duration"]
    assert dict(point.attributes) == {"a": "b"}

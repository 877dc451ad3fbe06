"""Sessions and runs: what lasts, what starts afresh, and what stops from outside."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from otel_toolguard import (
    CircuitOpen,
    MemoryStore,
    Policy,
    Session,
    SessionStopped,
    SettingsError,
    current_session,
    find_trip,
    guard_tool,
)
from otel_toolguard.place import here


@guard_tool
def look(q="x"):
    return "same"


@guard_tool
async def look_later(q="x"):
    return "same"


def policy(**ceilings):
    repeat = {"plugin": "repeat_guard", "limit": 3, "max_period": 1}
    return Policy(plugins=[repeat, {"plugin": "call_ceiling", **ceilings}])


def session(name="s", **more):
    more.setdefault("policy", policy(run=100))
    return Session(name, store=more.pop("store", MemoryStore()), **more)


def test_the_current_session_is_that_of_the_innermost_block():
    """current_session follows the blocks in and out, and is None outside any."""
    assert current_session() is None
    with session("outer") as outer:
        with session("inner") as inner:
            assert current_session() is inner
        assert current_session() is outer
    assert current_session() is None


def test_a_new_run_starts_clean_but_session_ceilings_go_on():
    """Rings belong to the run; the session's ceiling counts over all runs and trips each later run at once."""
    kept = MemoryStore()
    for _ in range(5):
        with session(store=kept, policy=policy(session=10)) as run:
            look()
            look()
            assert run.trip is None
    for _ in range(2):
        with session(store=kept, policy=policy(session=10)) as run:
            with pytest.raises(SessionStopped):
                look("new")
            assert (run.trip.rule, run.trip.scope, run.trip.observed) == ("call_ceiling", "session", 10)


def test_a_stop_ends_with_its_run_unless_the_latch_is_the_session():
    """latch="run" lets the next run go on; latch="session" keeps it stopped until reset."""
    for latch, stopped in (("run", False), ("session", True)):
        kept = MemoryStore()
        rules = Policy(plugins=[{"plugin": "repeat_guard", "limit": 2}], latch=latch)
        with session(store=kept, policy=rules):
            look()
            look()
        with session(store=kept, policy=rules) as run:
            if stopped:
                with pytest.raises(SessionStopped):
                    look()
                run.reset("tried by hand")
            assert look() == "same"


def test_two_sessions_of_one_id_share_their_state_and_others_do_not():
    """A session is its id and store: equal ids draw from one ceiling, different ids never meet."""
    kept = MemoryStore()
    with session("a", store=kept, policy=policy(session=3)):
        look(1)
        look(2)
    with session("b", store=kept, policy=policy(session=3)) as other:
        look(3)
        look(4)
        assert other.trip is None
    with session("a", store=kept, policy=policy(session=3)):
        look(5)
        with pytest.raises(SessionStopped):
            look(6)


def test_raise_if_open_is_the_gate_for_model_boundaries():
    """The gate passes until the run is stopped, then raises with the trip, inside the block and after it."""
    with session() as run:
        run.raise_if_open()
        for _ in range(3):
            look()
        with pytest.raises(SessionStopped) as caught:
            run.raise_if_open()
        assert find_trip(caught.value) == run.trip
    with pytest.raises(CircuitOpen):
        run.raise_if_open()


def test_an_operator_stops_every_run_until_reset():
    """session.stop holds in other threads and later runs, is told to on_trip, and is listed with its reason."""
    told = []
    with session(on_trip=told.append) as run:
        run.stop("bill too high")
        assert [trip.loop_type for trip in told] == ["stopped_by_operator"]
        with ThreadPoolExecutor(1) as pool, pytest.raises(SessionStopped, match="bill too high"):
            pool.submit(run.bind(look)).result()
    with run:
        with pytest.raises(SessionStopped):
            look()
        run.reset("paid")
        assert look() == "same"
    assert [(entry["action"], entry["reason"]) for entry in run.audit()] == [
        ("stop", "bill too high"),
        ("reset", "paid"),
    ]


@pytest.mark.parametrize("reason", ["", "  "])
def test_stopping_and_resetting_need_a_reason(reason):
    """An empty reason is an error: the audit would say nothing."""
    with session() as run:
        with pytest.raises(ValueError, match="reason"):
            run.stop(reason)
        with pytest.raises(ValueError, match="reason"):
            run.reset(reason)


def test_reset_keeps_ceilings_unless_told_otherwise():
    """Reset clears the latch and rings; counters of ceilings only with ceilings=True."""
    with session(policy=policy(run=4)) as run:
        for n in range(4):
            look(n)
        with pytest.raises(SessionStopped):
            look("more")
        run.reset("once more")
        with pytest.raises(SessionStopped):
            look("more")
        run.reset("really", ceilings=True)
        assert look("more") == "same"


def test_a_run_inside_a_guarded_call_is_nested():
    """A sub-agent has rings of its own, draws from its parent's ceiling, and its stop stops the parent."""
    run = session(policy=policy(run=5))

    @guard_tool
    def delegate(times):
        with run:
            for n in range(times):
                look(n)
        return "done"

    with run:
        assert delegate(3) == "done"
        with pytest.raises(SessionStopped):
            delegate(3)
        assert run.trip is not None
        with pytest.raises(SessionStopped):
            look("after")


def test_another_session_s_stop_inside_a_call_stops_the_outer_run():
    """A nested session of another id that is stopped ends the run around it too."""

    @guard_tool
    def delegate():
        with session("inner"):
            for _ in range(9):
                look()

    with session("outer") as outer:
        with pytest.raises(SessionStopped):
            delegate()
        assert outer.trip.session_id == "inner"
        with pytest.raises(SessionStopped):
            look("after")


def test_concurrent_runs_of_one_session_object_stay_apart():
    """One object entered in several tasks: each has its own run, and leaves its own."""
    shared = session(policy=policy(session=1000))

    async def one(n):
        async with shared as run:
            for _ in range(2):
                await look_later()
                await asyncio.sleep(0)
            assert run.trip is None
            return current_session() is shared

    async def all_of_them():
        assert await asyncio.gather(*(one(n) for n in range(10))) == [True] * 10
        assert current_session() is None

    asyncio.run(all_of_them())


def test_bind_carries_the_session_into_a_raw_thread():
    """A bound function keeps session and run in a thread that has no context of its own; an unbound one loses them."""
    with session(policy=Policy(plugins=[{"plugin": "tool_stats"}])) as run:
        thread = threading.Thread(target=run.bind(look))
        thread.start()
        thread.join()
        assert run.report()["calls"] == 1


def test_bind_keeps_async_functions_async():
    """A bound coroutine function runs in the session wherever it is awaited."""

    async def elsewhere(bound):
        assert current_session() is None
        return await bound()

    run = session(policy=Policy(plugins=[{"plugin": "tool_stats"}]))
    with run:
        bound = run.bind(look_later)
    assert asyncio.run(elsewhere(bound)) == "same"
    assert run.report()["calls"] == 1


def test_the_report_has_crucible_s_keys():
    """calls, retries, longest_fail_streak, tools and classes, as the original names them."""
    with session(policy=Policy.profile("balanced")) as run:
        look()
        run.report_retry("rate_limit", 1)
        report = run.report()
    assert (report["calls"], report["retries"], report["longest_fail_streak"]) == (1, 1, 0)
    assert (report["tools"]["look"]["calls"], report["tools"]["look"]["failed"]) == (1, 0)
    assert sum(report["classes"].values()) == 1


def test_observe_lets_everything_run_and_says_it_once():
    """In observe mode nothing is refused, and each rule says once what it would have done."""
    told = []
    rules = Policy(plugins=[{"plugin": "repeat_guard", "limit": 2}], mode="observe")
    with session(policy=rules, on_trip=told.append) as run:
        for _ in range(20):
            assert look() == "same"
        assert run.trip is None
    assert [trip.rule for trip in told] == ["repeat_guard"]


def test_sessions_without_an_id_are_strangers():
    """None draws a random id each time."""
    assert Session().id != Session().id


def test_another_signature_key_starts_afresh(caplog):
    """State signed under another key is not compared: counters start again, with a warning."""
    kept = MemoryStore()
    for key in ("one", "two"):
        rules = Policy(plugins=[{"plugin": "call_ceiling", "session": 2}], signature_key=key)
        with session(store=kept, policy=rules) as run:
            look(1)
            look(2)
            assert run.trip is None
    assert "start afresh" in caplog.text


def test_a_log_that_fails_does_not_keep_a_session_from_starting_afresh():
    """Where the application's own filter raises at that warning, the calls under the new key are judged all the same."""
    kept, logger = MemoryStore(), logging.getLogger("otel_toolguard")

    def fails(record):
        raise RuntimeError("a filter of the application's")

    rules = {"plugins": [{"plugin": "call_ceiling", "tools": {"look": 2}}]}
    with session(store=kept, policy=Policy(**rules, signature_key="one")):
        look(1)
    logger.addFilter(fails)
    try:
        with session(store=kept, policy=Policy(**rules, signature_key="two")):
            look(1)
            look(2)
            with pytest.raises(CircuitOpen):
                look(3)
    finally:
        logger.removeFilter(fails)


def test_a_block_speaks_of_the_framework_run_that_was_stopped_inside_it():
    """After a framework swallowed the stop of its run, session.trip in the block around it still finds the record."""
    with session() as run:
        outer = run.place(outer=here.get())
        here.set(outer)
        for _ in range(3):
            look()
        here.set(outer.outer)
        assert run.trip.rule == "repeat_guard"
    with run:
        assert run.trip is None


def test_telemetry_off_silences_spans_and_keeps_the_guard(monkeypatch):
    """TOOLGUARD_TELEMETRY=off: no telemetry object at all, and the run is stopped as ever."""
    monkeypatch.setenv("TOOLGUARD_TELEMETRY", "off")
    with session() as run:
        assert run.guard.telemetry is None
        for _ in range(3):
            look()
        with pytest.raises(SessionStopped):
            look()


@pytest.mark.parametrize("arguments", [{"id": Policy()}, {"policy": "strict"}, {"policy": {"plugins": []}}])
def test_what_is_no_policy_is_refused_with_advice(arguments):
    """A profile's name or a dict as policy, or a policy as id, is an error that says what to write."""
    with pytest.raises(SettingsError, match=r"Session|Policy\.profile"):
        Session(**arguments)


def test_a_wrong_telemetry_switch_is_an_error(monkeypatch):
    """A misspelled TOOLGUARD_TELEMETRY does not silently leave telemetry on."""
    monkeypatch.setenv("TOOLGUARD_TELEMETRY", "of")
    with pytest.raises(SettingsError, match="on and off"):
        Session()


def test_the_warning_of_a_trip_carries_the_record(caplog):
    """The log record of a trip has the whole trip beside its sentence, so that a log can be searched by session."""
    with session("tenant-7"):
        for _ in range(3):
            look()
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert (record.toolguard["session_id"], record.toolguard["tool"]) == ("tenant-7", "look")


@pytest.mark.parametrize("fault", [ValueError("no"), SystemExit(1)])
def test_a_callback_that_ends_the_program_is_not_felt(fault, caplog):
    """What on_trip raises, sys.exit included, is logged, and the call has its result."""

    def told(trip):
        raise fault

    look = guard_tool(name="look")(lambda: "seen")
    with Session(policy=Policy(plugins=[{"plugin": "repeat_guard", "limit": 2}]), on_trip=told):
        assert [look(), look()] == ["seen", "seen"]
    assert "on_trip raised" in caplog.text

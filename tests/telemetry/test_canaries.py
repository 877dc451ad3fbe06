"""No argument, no result and no secret of a call gets out by default: not in any signal, log, exception or record."""

import asyncio
import base64
import contextlib
import inspect
import json
import logging
import traceback
from urllib.parse import quote, quote_plus

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, guard_tool

MARK = "kanar1envogel"
CANARY = f"sk-{MARK}/{MARK}?q={MARK} ü"
ADDRESS = f"https://{MARK}:{MARK}@host/"
FORMS = {
    MARK,
    quote(CANARY, safe=""),
    quote_plus(CANARY),
    json.dumps(CANARY)[1:-1],
    MARK.encode().hex(),
    MARK[::-1],
    # Base64 of what stands somewhere in a longer text: whole groups of three of it.
    *(base64.b64encode(MARK[skip : skip + 9].encode()).decode() for skip in range(3)),
}
REPEAT = {"plugin": "repeat_guard", "limit": 3}


def policy(*plugins, **more):
    return Policy(plugins=[*plugins, {"plugin": "tool_stats"}], **more)


class Cage:
    """Everything that a session lets out."""

    def __init__(self, told, caplog, **telemetry):
        self.told, self.caplog, self.said = told, caplog, []
        optional = ["toolguard.circuit.warned", "toolguard.session.ended"]
        self.telemetry = told.telemetry(events=optional, **telemetry)

    def session(self, rules):
        return Session("s1", policy=rules, telemetry=self.telemetry, on_trip=self.note_trip)

    def note_trip(self, trip):
        self.said += [repr(trip), json.dumps(trip.to_dict()), trip.to_tool_message()]

    def note(self, error):
        """What is ours of an exception: the tool's own words and notes are the tool's."""
        self.said += [note for note in getattr(error, "__notes__", ()) if not note.startswith("tried with ")]
        if isinstance(error, CircuitOpen):
            self.said += [str(error), repr(error), str(error.args), error.model().model_dump_json()]
            self.said += ["".join(traceback.format_exception_only(error)), error.to_tool_message()]

    def close(self, session):
        report = session.report()
        self.telemetry.session_ended(session.id, calls=report["calls"], tripped=False, report=report)
        self.said += [repr(session), repr(session.policy), repr(session.guard), json.dumps(report)]
        self.said += [json.dumps(session.audit()), repr(session.trip)]

    def everything(self):
        spans = [span.to_json() + repr(span.events) + repr(span.links) for span in self.told.spans()]
        events = [repr(event.body) + repr(dict(event.attributes)) for event in self.told.events()]
        points = [
            repr(dict(point.attributes)) + repr([dict(e.filtered_attributes or {}) for e in point.exemplars])
            for points in self.told.points().values()
            for point in points
        ]
        logs = [
            record.getMessage() + repr({key: value for key, value in vars(record).items() if key != "exc_info"})
            for record in self.caplog.records
            if record.name.startswith("otel_toolguard")
        ]
        formatted = [logging.Formatter().format(record) for record in self.caplog.records]
        return spans, "\n".join([*spans, *events, *points, *logs, *formatted, *self.said])


@pytest.fixture
def cage(told, caplog):
    with caplog.at_level(logging.DEBUG):
        yield Cage(told, caplog)


def check(cage, capfd, outcomes):
    """Nothing got out, and there was something to get out of."""
    assert cage.told.outcomes() == outcomes
    _, all_of_it = cage.everything()
    printed = "".join(capfd.readouterr())
    for form in FORMS:
        assert form.lower() not in (all_of_it + printed).lower(), form


def result():
    return {"found": CANARY, "password": CANARY, "at": ADDRESS, "raw": CANARY.encode(), "n": [CANARY, {CANARY: 1}]}


def look_up(q, api_key=None, *rest, **more):
    return result()


def fail(q, api_key=None, *rest, **more):
    error = PermissionError(f"{api_key} may not see {q} at {ADDRESS}")
    error.add_note(f"tried with {api_key}")
    raise error from KeyError(CANARY)


async def look_up_async(q, api_key=None, *rest, **more):
    return result()


async def wait(q, api_key=None, *rest, **more):
    await asyncio.Event().wait()


def stream(q, api_key=None, *rest, **more):
    yield CANARY
    yield from result().values()


async def stream_async(q, api_key=None, *rest, **more):
    for item in (CANARY, result()):
        yield item


def call(cage, function):
    """A call of a tool with the canary in every argument; what it raises is noted."""
    try:
        answer = function(CANARY, CANARY, CANARY, url=ADDRESS, headers={"Authorization": f"Bearer {CANARY}"})
        if inspect.iscoroutine(answer):
            asyncio.run(answer)
        elif hasattr(answer, "__aiter__"):
            asyncio.run(_drained(answer))
        elif hasattr(answer, "send"):
            list(answer)
    except Exception as error:
        cage.note(error)


async def _drained(answer):
    return [item async for item in answer]


PATHS = {
    "ok": (look_up, policy(), 2, ["ok"] * 2),
    "failed": (fail, policy(), 2, ["failed"] * 2),
    "coroutine": (look_up_async, policy(), 2, ["ok"] * 2),
    "generator": (stream, policy(REPEAT), 4, ["ok"] * 3 + ["refused"]),
    "async generator": (stream_async, policy(REPEAT), 4, ["ok"] * 3 + ["refused"]),
    "stopped": (look_up, policy(REPEAT), 5, ["ok"] * 3 + ["refused"] * 2),
    "stopped, failing": (fail, policy(REPEAT), 4, ["failed"] * 3 + ["refused"]),
    "refused": (look_up, policy({"plugin": "call_ceiling", "signature": 1}), 3, ["ok"] + ["refused"] * 2),
    "refused tool": (fail, policy({"plugin": "call_ceiling", "tools": {"*": 1}}), 2, ["failed", "refused"]),
    "fails in one way": (
        fail, policy({"plugin": "signature_failures", "limit": 2}), 3, ["failed"] * 2 + ["refused"]),
    "observed": (look_up, policy(REPEAT, mode="observe"), 5, ["ok"] * 5),
    "defaults": (look_up, Policy(), 7, ["ok"] * 6 + ["refused"]),
    "defaults, failing": (fail, Policy(), 7, ["failed"] * 6 + ["refused"]),
    "nothing judges": (fail, policy(mode="off"), 2, ["failed"] * 2),
}  # fmt: skip


@pytest.mark.parametrize(("function", "rules", "calls", "outcomes"), PATHS.values(), ids=PATHS)
def test_nothing_gets_out(cage, capfd, function, rules, calls, outcomes):
    """On each path a call can take, its values are in nothing that the library writes, raises, shows or logs."""
    tool = guard_tool(name="look_up")(function)
    with cage.session(rules) as session:
        for _ in range(calls):
            call(cage, tool)
    cage.close(session)
    check(cage, capfd, outcomes)


def test_a_cancelled_call(cage, capfd):
    """A call that is cancelled lets nothing out either."""

    async def main():
        task = asyncio.create_task(guard_tool(wait)(CANARY, CANARY))
        await asyncio.sleep(0)
        task.cancel(CANARY)
        await asyncio.gather(task, return_exceptions=True)

    with cage.session(policy()) as session:
        asyncio.run(main())
    cage.close(session)
    check(cage, capfd, ["cancelled"])


def test_a_call_that_does_not_fit_and_one_that_cannot_be_read(cage, capfd):
    """Arguments that do not fit the function, or refuse to be looked at, are not quoted."""

    class Refusing(dict):
        def __iter__(self):
            raise RuntimeError(CANARY)

        items = keys = __repr__ = __len__ = __iter__

    tool = guard_tool(name="look_up")(lambda q: None)
    with cage.session(policy()) as session:
        for given in ({"nothing": CANARY}, {"q": Refusing(a=1)}):
            with contextlib.suppress(TypeError):
                tool(**given)
    cage.close(session)
    check(cage, capfd, ["failed", "ok"])


def test_in_a_shell_command(cage, capfd):
    """A command, by whose text its class is told, is not told itself."""

    @guard_tool
    def run_shell(command, cwd=None):
        return {"exit_code": 1, "stdout": CANARY}

    with cage.session(policy(REPEAT)) as session:
        for _ in range(4):
            with contextlib.suppress(CircuitOpen):
                run_shell(f"curl -H 'Authorization: {CANARY}' {ADDRESS} && rm -rf /{MARK}", cwd=f"/{MARK}")
    cage.close(session)
    check(cage, capfd, ["failed"] * 3 + ["refused"])


def test_outside_any_session(cage, capfd, monkeypatch):
    """A call that belongs nowhere is warned of without its values."""
    tool = guard_tool(name="nowhere")(look_up)
    with pytest.warns(RuntimeWarning) as warned:
        tool(CANARY, api_key=CANARY)
    cage.said += [str(warning.message) for warning in warned]
    check(cage, capfd, [])


def test_a_telemetry_that_fails(cage, capfd, monkeypatch):
    """A failure of telemetry over a call's values is named by its class, at every level; its words are nowhere."""
    from otel_toolguard.telemetry import spans, values

    def over(*args, **kwargs):
        raise ValueError(CANARY)

    monkeypatch.setattr(spans, "_reported", set())
    with cage.session(policy()) as session, monkeypatch.context() as patch:
        patch.setattr(values, "told", over)
        call(cage, guard_tool(name="look_up")(fail))
    cage.close(session)
    assert "telemetry failed to describe a call (ValueError)" in cage.caplog.text
    spans_of_it, _ = cage.everything()
    assert len(spans_of_it) == 1
    for form in FORMS:
        assert form.lower() not in cage.everything()[1].lower(), form


@pytest.mark.parametrize("rules", [policy(REPEAT), Policy()], ids=["repeat_guard", "defaults"])
@pytest.mark.parametrize("function", [look_up, fail], ids=["ok", "failed"])
def test_below_the_langchain_adapter(cage, capfd, rules, function):
    """The same holds where LangChain calls the tool; what it puts into its messages is its own."""
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import StructuredTool
    from otel_toolguard_langchain import ToolGuardMiddleware

    class Scripted(BaseChatModel):
        @property
        def _llm_type(self):
            return "scripted"

        def bind_tools(self, tools, **kwargs):
            return self

        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            ask = {"name": "look_up", "args": {"q": CANARY, "api_key": CANARY}, "id": f"call-{len(messages)}"}
            return ChatResult(generations=[ChatGeneration(message=AIMessage(content="", tool_calls=[ask]))])

    def answered(q: str, api_key: str) -> str:
        """Looks something up."""
        try:
            return str(function(q, api_key))
        except PermissionError as error:
            from langchain_core.tools import ToolException

            raise ToolException(str(error)) from error

    tool = StructuredTool.from_function(answered, name="look_up", handle_tool_error=True)
    agent = create_agent(Scripted(), [tool], middleware=[ToolGuardMiddleware()])
    with cage.session(rules) as session:
        try:
            agent.invoke({"messages": [("user", "go")]})
        except CircuitOpen as error:
            cage.note(error)
    cage.close(session)
    check(cage, capfd, ["ok" if function is look_up else "failed"] * len(cage.told.spans()))
    assert session.report()["trips"]


@pytest.mark.parametrize("word", ["key", "result_key"])
def test_a_function_of_the_author_s_that_raises(cage, capfd, word):
    """Where the author's own function raises over a value, the log has its place, not its words."""

    def over(value):
        raise KeyError(CANARY)

    tool = guard_tool(name="look_up", **{word: over})(look_up)
    with cage.session(policy(REPEAT)) as session:
        call(cage, tool)
    cage.close(session)
    check(cage, capfd, ["ok"])


@pytest.mark.parametrize("function", [look_up, fail], ids=["ok", "failed"])
def test_a_store_that_fails(cage, capfd, function, monkeypatch):
    """A failure of the guard itself is logged with its class and place, not with the words of the call it was about."""
    from otel_toolguard import guard

    monkeypatch.setattr(guard, "_faults", set())

    class Failing(MemoryStore):
        def transact(self, session_id, step):
            if self.broken:
                raise OSError(CANARY)
            return super().transact(session_id, step)

        broken = False

    store = Failing()
    session = Session("s1", policy=policy(), telemetry=cage.telemetry, store=store)
    with session:
        store.broken = True
        call(cage, guard_tool(name="look_up")(function))
        store.broken = False
    cage.close(session)
    assert "the guard failed to admit a call" in cage.caplog.text
    assert "OSError: (its words are left out)" in cage.caplog.text
    check(cage, capfd, ["ok" if function is look_up else "failed"])


def test_an_on_trip_that_fails(cage, capfd):
    """What a callback raises over a trip is logged in its words, without those of the call that was failing."""

    def over(trip):
        raise LookupError("no such channel")

    session = Session("s1", policy=policy(REPEAT), telemetry=cage.telemetry, on_trip=over)
    with session:
        for _ in range(3):
            call(cage, guard_tool(name="look_up")(fail))
    cage.close(session)
    assert "no such channel" in cage.caplog.text
    check(cage, capfd, ["failed"] * 3)


def test_the_cage_holds():
    """Each form is found where it is: a check that cannot fail would prove nothing."""
    for text in (CANARY, base64.b64encode(f"a{CANARY}".encode()).decode(), base64.b64encode(CANARY.encode()).decode(),
                 base64.urlsafe_b64encode(f"ab{CANARY}".encode()).decode(), quote(CANARY, safe=""), json.dumps(CANARY),
                 CANARY.encode().hex()):  # fmt: skip
        assert any(form.lower() in text.lower() for form in FORMS), text

"""What the settings say about single tools: what of a call is compared, limits of their own, what may pass, circuits."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, SessionStopped, SettingsError, guard_tool
from otel_toolguard.core.projection import folded, part_of
from otel_toolguard.errors import SettingsWarning

REPEAT = {"plugin": "repeat_guard", "limit": 3}
FAILURES = {"plugin": "signature_failures", "limit": 3}


@dataclass
class Job:
    state: str
    at: int


def session(*plugins, **tools):
    return Session("s", policy=Policy(plugins=list(plugins), tools=tools), store=MemoryStore())


def ran(run, calls):
    """How many of the calls had a body before the first that was refused."""
    with run:
        for n, call in enumerate(calls):
            try:
                call()
            except CircuitOpen:
                return n
            except LookupError:
                continue
    return len(calls)


def tool(name, answer=lambda **said: "ok", **told):
    def body(**said):
        return answer(**said)

    return guard_tool(name=name, **told)(body)


@pytest.mark.parametrize("key", ["path", ["path"], ["path", "missing"], lambda said: said["path"]])
def test_a_key_names_the_arguments_that_are_compared(key):
    """With a key, as a name, a list or a function, other arguments make no difference, and these do."""
    read = tool("read")
    calls = [lambda n=n: read(path="a", page=n) for n in range(9)]
    assert ran(session(REPEAT, read={"key": key}), calls) == 3
    assert ran(session(REPEAT), calls) == 9
    assert ran(session(REPEAT, read={"key": key}), [lambda n=n: read(path=n, page=1) for n in range(9)]) == 9


def test_a_key_may_lead_into_an_argument():
    """A dotted path compares one part of an argument."""
    query = tool("query")
    calls = [lambda n=n: query(filter={"id": 7, "trace": n}) for n in range(9)]
    assert ran(session(REPEAT, query={"key": "filter.id"}), calls) == 3


@pytest.mark.parametrize("answer", [
    lambda n: {"job": {"state": "queued"}, "load": f"w{n}" * 4},
    lambda n: f'{{"job": {{"state": "queued"}}, "load": "w{n}x"}}',
    lambda n: {"job": Job("queued", n), "load": f"w{n}x"},
], ids=["dict", "json text", "object"])  # fmt: skip
def test_a_result_key_names_the_part_of_a_result_that_is_compared(answer):
    """With a result key, in a dict, in JSON text or on an object, the rest of the result is no progress."""
    start = tool("start", answer, ignore=["n"])
    calls = [lambda n=n: start(n=n) for n in range(9)]
    assert ran(session(REPEAT, start={"result_key": "job.state"}), calls) == 3
    assert ran(session(REPEAT), calls) == 9


def test_a_result_without_the_part_is_compared_whole():
    """Where a result has nothing under the result key, two different ones stay two."""
    start = tool("start", lambda n: f"error: no job {'x' * n}", ignore=["n"])
    assert ran(session(REPEAT, start={"result_key": "job.state"}), [lambda n=n: start(n=n) for n in range(9)]) == 9


@pytest.mark.parametrize(("value", "paths", "part"), [
    ({"a": {"b": 1}}, ("a.b",), [1]),
    ({"rows": [{"id": 4}, {"id": 5}]}, ("rows.1.id", "rows.0.id"), [5, 4]),
    ({"a": None}, ("a",), [None]),
    ([1, 2], ("5",), [1, 2]),
    ("[1, 2", ("0",), "[1, 2"),
    ("plain", ("a",), "plain"),
    (Job("x", 1), ("_state",), Job("x", 1)),
    ({"a": "text"}, ("a.upper",), {"a": "text"}),
    (None, ("a",), None),
], ids=repr)  # fmt: skip
def test_parts_of_values(value, paths, part):
    """A path leads through keys, places and attributes; where none leads anywhere, the value itself is compared."""
    assert part_of(value, paths) == part


@pytest.mark.parametrize("where", ["settings", "decorator"])
def test_folded_texts_are_equal(where):
    """With fold, texts that differ in composition or outer blanks are one, and case still counts."""
    read = tool("read", fold=where == "decorator")
    settings = {"read": {"fold": True}} if where == "settings" else {}
    for texts, stopped in ((["café", "cafe\u0301", " café\n"] * 3, 3), (["a", "A"] * 3, 6)):
        calls = [lambda text=text: read(path={"name": [text]}) for text in texts]
        assert ran(session(REPEAT, **settings), calls) == stopped
    if where == "settings":
        assert ran(session(REPEAT), [lambda t=t: read(path=t) for t in ["a", " a", "a "] * 2]) == 6


def test_folding_is_bounded():
    """Shared and endless parts cost a bounded number of steps, and what is left over stays as it is."""
    shared = [" x "]
    for _ in range(40):
        shared = [shared] * 10
    round_about = [" y "]
    round_about.append(round_about)
    assert folded(round_about)[0] == "y"
    assert folded(shared)


@pytest.mark.parametrize(("rule", "answer"), [
    ("repeat_guard", lambda n: "same"), ("same_answer", lambda n: "same"), ("failure_streak", None),
])  # fmt: skip
@pytest.mark.parametrize("limit", [2, 5, 7])
def test_a_tool_has_a_limit_of_its_own(rule, answer, limit):
    """A limit in a tool's table holds for that tool alone, below and above that of the rule, and the trip names it."""

    def body(n):
        if answer is None:
            raise LookupError(n)
        return answer(n)

    ignore = ["n"] if rule == "repeat_guard" else []
    mine, other = (guard_tool(name=name, ignore=ignore)(body) for name in ("mine", "other"))
    chain = {"plugin": rule, "limit": 4}
    run = session(chain, **{"min*": {"limits": {rule: limit}}})
    assert ran(run, [lambda n=n: mine(n=n) for n in range(20)]) == limit
    trip = run.trip
    assert (trip.limit, trip.observed) == (limit, limit)
    assert f'[tools."min*"] limits = {{{rule} = {limit + 1}}} would have allowed it' in trip.why
    run = session(chain, **{"min*": {"limits": {rule: limit}}})
    assert ran(run, [lambda n=n: other(n=n) for n in range(20)]) == 4
    assert f"{rule} limit = 5 would have allowed it" in run.trip.why


def test_a_signature_has_its_tools_limit():
    """The failures of one call that a tool is allowed are its own; other calls of it go on."""

    def body(n):
        if n == 0:
            raise LookupError("no")

    mine = guard_tool(name="mine")(body)
    with session(FAILURES, mine={"limits": {"signature_failures": 5}}) as run:
        for _ in range(5):
            with pytest.raises(LookupError):
                mine(n=0)
        with pytest.raises(CircuitOpen) as refused:
            mine(n=0)
        assert refused.value.trip.limit == 5
        mine(n=1)
        assert run.trip is None


@pytest.mark.parametrize(("limits", "laps"), [
    ({"a": 6}, 3), ({"a": 2}, 2), ({"a": 6, "b": 5}, 5), ({"a": 2, "b": 5}, 2),
])  # fmt: skip
def test_a_cycle_has_the_fewest_laps_of_its_calls(limits, laps):
    """Of the limits of the calls in a cycle, the rule's 3 among them, the smallest holds."""
    tools = {name: {"limits": {"repeat_guard": n}} for name, n in limits.items()}
    a, b = tool("a"), tool("b")
    assert ran(session(REPEAT, **tools), [a, b] * 9) == 2 * laps


def test_waiting_between_does_not_shorten_a_tools_limit():
    """A neutral call in the cycle has no limit that would hold for the others."""
    tools = {"look": {"limits": {"repeat_guard": 6}}}
    assert ran(session(REPEAT, **tools), [tool("look"), tool("think")] * 9) == 12


@pytest.mark.parametrize("rule", ["repeat_guard", "stagnation", "same_answer", "failure_streak", "signature_failures"])
def test_a_tool_may_be_spared_by_a_rule(rule):
    """With "off" a rule does not see the calls of a tool; the ceiling still does, and other tools are stopped."""

    def body(n):
        if rule in ("failure_streak", "signature_failures"):
            raise LookupError("no")
        return "same"

    ignore = ["n"] if rule != "same_answer" else []
    keys, other = (guard_tool(name=name, ignore=ignore)(body) for name in ("keys", "other"))
    chain = [{"plugin": rule, "limit": 4}, {"plugin": "call_ceiling", "run": 40}]
    run = session(*chain, keys={"limits": {rule: "off"}})
    assert ran(run, [lambda n=n: keys(n=n) for n in range(50)]) == 40
    assert run.trip.rule == "call_ceiling"
    assert ran(session(*chain, keys={"limits": {rule: "off"}}), [lambda n=n: other(n=n) for n in range(50)]) < 8


def test_spared_calls_do_not_hide_a_cycle_around_them():
    """A call that a rule does not see breaks no cycle of those that it sees."""
    keys, look = tool("keys", lambda n: f"new {'x' * n}"), tool("look")
    calls = [call for n in range(9) for call in (look, lambda n=n: keys(n=n))]
    assert ran(session(REPEAT, keys={"limits": {"repeat_guard": "off"}}), calls) == 5


@pytest.mark.parametrize(("transient", "failures"), [
    (None, 3), (["quota"], 9), (["QUOTA", "other"], 9), ("lookuperror", 9), (["elsewhere"], 3), (True, 9), (False, 3),
    (lambda error_type, text: error_type == "LookupError" and "quota" in text, 9),
])  # fmt: skip
def test_what_may_pass_can_be_said_for_a_tool(transient, failures):
    """Failures that the settings call transient count a third."""

    def body():
        raise LookupError("quota used up for now")

    book = guard_tool(name="book")(body)
    settings = {} if transient is None else {"book": {"transient": transient}}
    assert ran(session(FAILURES, **settings), [book] * 20) == failures


def test_what_usually_passes_can_be_called_permanent():
    """With transient = false even a timeout counts whole."""

    def body():
        raise TimeoutError("timed out")

    book = guard_tool(name="book")(body)
    with session(FAILURES, book={"transient": False}):
        for _ in range(3):
            with pytest.raises(TimeoutError):
                book()
        with pytest.raises(CircuitOpen):
            book()


def test_a_function_of_the_settings_that_raises_is_never_felt(caplog):
    """A transient function that raises is said once, and the failure is what it would be without it."""

    def body():
        raise LookupError("no")

    book = guard_tool(name="book")(body)
    assert ran(session(FAILURES, book={"transient": lambda error_type, text: 1 / 0}), [book] * 9) == 3
    assert [record.args for record in caplog.records if record.levelname == "ERROR"] == [("transient", "book")]


@pytest.mark.parametrize(("settings", "said"), [
    ({"limits": {"stagnation": 5}}, 'stagnation has one limit for all tools; valid here is "off"'),
    ({"limits": {"call_ceiling": 5}}, 'a ceiling of one tool is call_ceiling tools = {"search_*" = 5}'),
    ({"limits": {"tool_stats": "off"}}, "no rule that could spare a tool; valid are "),
    ({"limits": {"repeat_gaurd": 4}}, "valid are deadline, depth, distinct_ratio, failure_streak"),
    ({"limits": {"repeat_guard": 1}}, "limits.repeat_guard = 1: Input should be greater than or equal to 2"),
    ({"limits": {"repeat_guard": 501}}, "can never be reached"),
    ({"limits": {"repeat_guard": 0}}, 'limits.repeat_guard = 0; valid are whole numbers from 1, and "off"'),
    ({"limits": {"repeat_guard": True}}, "limits.repeat_guard = True; valid are"),
    ({"limits": {"repeat_guard": 4.0}}, "limits.repeat_guard = 4.0; valid are"),
    ({"key": []}, "key = []; valid are a text, a list of texts, in code a function"),
    ({"result_key": [1]}, "result_key = [1]; valid are"),
    ({"transient": 1}, "transient = 1; valid are true, false, a text"),
    ({"circuit": "open"}, "Input should be 'closed', 'forced_open', 'observe' or 'disabled'"),
    ({"fold": "yes"}, "fold: Input should be a valid boolean"),
], ids=str)  # fmt: skip
def test_wrong_settings_of_a_tool_are_errors_that_name_the_place(settings, said, tmp_path):
    """A value that cannot be honoured is an error with the glob and what is valid, from code and from a file."""
    with pytest.raises(SettingsError) as error:
        Policy(tools={"search_*": settings})
    assert said in str(error.value)
    assert str(error.value).startswith('tools["search_*"]: ')


def test_a_file_says_all_of_it(tmp_path):
    """Each key of a tool's table is read from TOML, and an error names file and line."""
    path = tmp_path / "guard.toml"
    path.write_text(
        '[tools."search_*"]\nkey = ["q", "filter.id"]\nresult_key = "state"\nfold = true\ntransient = ["quota"]\n'
        'circuit = "observe"\nlimits = { repeat_guard = 20, same_answer = "off" }\n'
    )
    policy = Policy.from_toml(path)
    assert policy.to_dict()["tools"] == {"search_*": {
        "key": ("q", "filter.id"), "result_key": ("state",), "fold": True, "transient": ("quota",), "circuit": "observe",
        "limits": {"repeat_guard": 20, "same_answer": "off"}}}  # fmt: skip
    path.write_text('version = 1\n\n[tools."search_*"]\nfold = true\nlimits = { repeat_guard = 1 }\n')
    with pytest.raises(SettingsError, match=r"guard\.toml:5: limits\.repeat_guard = 1"):
        Policy.from_toml(path)


def test_a_limit_of_a_rule_that_is_not_there_is_a_warning():
    """A tool's limit for a rule outside the chain has no effect, and that is said when the policy is made."""
    with pytest.warns(SettingsWarning, match="limits.depth has no effect: depth is not in the chain"):
        Policy(tools={"a": {"limits": {"depth": "off"}}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Policy(tools={"a": {"limits": {"stagnation": "off", "repeat_guard": 40}}})


def test_functions_are_shown_by_name():
    """The effective policy is JSON even where the settings hold functions."""
    assert Policy(tools={"a": {"key": len}}).to_dict()["tools"] == {"a": {"key": "len"}}


def test_the_stop_of_a_run_is_not_a_tools_own():
    """A stop by a tool's own limit ends the run for every tool."""
    a, b = tool("a"), tool("b")
    with session(REPEAT, a={"limits": {"repeat_guard": 2}}):
        a(), a()
        with pytest.raises(SessionStopped):
            b()

"""What is set for one tool alone: limits of its own at their edge, spellings that are folded, failures that may pass."""

from __future__ import annotations

import unicodedata

import pytest

from otel_toolguard import guard_tool

REPEAT = {"plugin": "repeat_guard"}
STREAK = {"plugin": "failure_streak"}


def same(q):
    return "same"


def broken(q):
    raise ValueError("no")


def broken_anew(q):
    raise ValueError(f"no {q}")


# rule: a session for it (tool, its arguments), what a call of it looks like, what it looks like after the limit
RULES = {
    "repeat_guard": (same, lambda word: "x", ".", "S"),
    "same_answer": (same, lambda word: word, ".", "S"),
    "failure_streak": (broken_anew, lambda word: word, "!", "S"),
    "signature_failures": (broken, lambda word: "x", "!", "r"),
}


@pytest.mark.parametrize("limit", [2, 3, 5, 8])
@pytest.mark.parametrize("rule", RULES)
def test_a_tool_s_own_limit_is_met_at_its_edge(rule, limit, opened, tried, words):
    """L calls run and the next does not, be the own limit lower or higher; another tool keeps the limit of the rule."""
    function, said, ran, after = RULES[rule]
    asked = [said(words(n)) for n in range(20)]
    mine, other = (guard_tool(name=name)(function) for name in ("mine", "other"))
    for common in (4, 12):
        tools = {"mi*": {"limits": {rule: limit}}}
        with opened({"plugin": rule, "limit": common}, tools=tools, name=f"mine {common}") as session:
            assert tried(mine, asked) == ran * limit + after * (20 - limit)
            (trip,) = session.report()["trips"]
            assert (trip["limit"], trip["observed"]) == (limit, limit)
            assert f'[tools."mi*"] limits = {{{rule} = {limit + 1}}} would have allowed it' in trip["why"]
        with opened({"plugin": rule, "limit": common}, tools=tools, name=f"other {common}"):
            assert tried(other, asked) == ran * common + after * (20 - common)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_can_be_off_for_a_tool_and_ceilings_still_hold(rule, opened, tried, words):
    """Thirty calls of the exempt tool run under a limit of four; what may be counted is counted all the same."""
    function, said, ran, after = RULES[rule]
    asked = [said(words(n)) for n in range(32)]
    exempt, other = (guard_tool(name=name)(function) for name in ("exempt", "other"))
    tools = {"exempt": {"limits": {rule: "off"}}}
    with opened({"plugin": rule, "limit": 4}, tools=tools):
        assert tried(exempt, asked[:30]) == ran * 30
        assert tried(other, asked[:5]) == ran * 4 + after
    with opened({"plugin": rule, "limit": 4}, {"plugin": "call_ceiling", "run": 30}, tools=tools):
        assert tried(exempt, asked) == ran * 30 + "SS"


@pytest.mark.parametrize("where", ["decorator", "settings"])
def test_spellings_of_one_text_can_be_folded(where, opened, tried):
    """Composed, decomposed and with blanks around, a word is one call once the tool is told so; slashes and case stay."""
    one = ["café", unicodedata.normalize("NFD", "café"), " café", "café\n"]
    for fold in (False, True):
        told = {"fold": True} if fold and where == "decorator" else {}
        tools = {"look": {"fold": True}} if fold and where == "settings" else {}
        look = guard_tool(name="look", **told)(same)
        with opened({"plugin": "call_ceiling", "signature": 1}, tools=tools, name=f"{where} {fold}"):
            assert tried(look, one) == (".rrr" if fold else "....")
            assert tried(look, ["café/", "Café", "cafe"]) == "..."


@pytest.mark.parametrize(
    ("transient", "calls"), [(None, 4), (False, 4), (True, 12), ("quota exceeded", 12), (["no such", "quota"], 4)]
)
def test_words_of_a_tool_s_own_say_what_may_pass(transient, calls, opened, tried, words):
    """An error known as passing by its tool's own words counts a third; one that has none of them counts whole."""

    @guard_tool
    def fetch(q):
        raise OSError("Quota Exceeded" if calls == 12 else "not found")

    tools = {} if transient is None else {"fetch": {"transient": transient}}
    with opened(STREAK | {"limit": 4}, tools=tools):
        assert tried(fetch, map(words, range(20))) == "!" * calls + "S" * (20 - calls)


def test_what_usually_passes_can_be_said_to_stay(opened, tried, words):
    """A tool whose timeouts mean no is told so, and its timeouts count whole."""

    @guard_tool
    def fetch(q):
        raise TimeoutError("timed out")

    for settings, calls in (({}, 12), ({"transient": False}, 4)):
        with opened(STREAK | {"limit": 4}, tools={"fetch": settings}, name=str(settings)):
            assert tried(fetch, map(words, range(20))) == "!" * calls + "S" * (20 - calls)


def test_a_part_of_a_result_can_be_all_that_is_compared(opened, tried):
    """A changing rest of an answer hides no loop where only one part of it is compared, and that part is progress."""
    states, ticks = iter(["running"] * 3 + ["running", "passed"] * 9), iter(range(1000))

    @guard_tool
    def get_build(id):  # noqa: A002
        return {"build": {"state": next(states)}, "tick": next(ticks)}

    rule = REPEAT | {"limit": 3, "max_period": 1}
    with opened(rule, tools={"get_build": {"result_key": "build.state"}}) as session:
        assert tried(get_build, ["a"] * 4) == "...S"
        session.reset("looked at")
        assert tried(get_build, ["a"] * 9) == "." * 9

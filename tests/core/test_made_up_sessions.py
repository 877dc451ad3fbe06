"""Sessions made up to be awkward: healthy ones that look stuck, stuck ones that look healthy; where each is stopped.

They run live, through ``guard_tool`` and ``Session``, so that classes, neutral calls, pollers, failures and masks are
those of the product; the rules are stagnation, repeat_guard and same_answer at the limits of the three profiles.
"""

import random
import statistics

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, guard_tool
from otel_toolguard.core.call import Outcome
from otel_toolguard.core.canonical import Signer
from otel_toolguard.core.decision import Refuse
from otel_toolguard.core.state import SessionState
from otel_toolguard.tool import Tool

LIMITS = {"strict": (10, 7, 20), "balanced": (12, 8, 25), "conservative": (20, 12, 30)}


def policy(profile):
    stagnation, repeat, same = LIMITS[profile]
    return Policy(mode="enforce", plugins=[{"plugin": "stagnation", "limit": float(stagnation)},
                                           {"plugin": "repeat_guard", "limit": repeat},
                                           {"plugin": "same_answer", "limit": same}])  # fmt: skip


class Failed(Exception):
    """What a tool raises."""


def ok(tool, answer="done", **arguments):
    return tool, arguments, answer


def bad(tool, error="no", **arguments):
    return tool, arguments, Failed(error)


def sh(command, output="", code=0):
    return "bash", {"command": command}, {"exit_code": code, "output": output}


class Live:
    """Guarded tools of any name, whose next answer is said beforehand."""

    def __init__(self, rules, **options):
        self.rules, self.options, self.tools, self.answer = rules, options, {}, None

    def tool(self, name):
        def body(**said):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        if name not in self.tools:
            self.tools[name] = guard_tool(name=name, **self.options)(body)
        return self.tools[name]

    def stops_at(self, calls):
        """The number of the call after which the run is stopped, from 1, and the rule; None if it is not."""
        with Session("made-up", policy=self.rules, store=MemoryStore()) as session:
            for number, (name, arguments, answer) in enumerate(calls, 1):
                self.answer = answer
                try:
                    self.tool(name)(**arguments)
                except Failed:
                    pass
                except CircuitOpen as refused:
                    raise AssertionError("refused without a trip before") from refused
                if session.trip is not None:
                    return number, session.trip.rule
        return None


def stop(calls, profile, **options):
    found = Live(policy(profile), **options).stops_at(calls)
    return found and found[0]


WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty", "knoll", "ledge"]


def word(n):
    """A different word without digits for each number."""
    return WORDS[n % 12] + WORDS[n // 12 % 12] + WORDS[n // 144]


def read(n):
    return ok("read_file", f"the text of {word(n)}", path=f"src/{word(n)}.py")


def orientation(again):
    """Twenty files, then the context is summed up and all are read once more, as often as asked."""
    calls = [read(n) for n in range(20)]
    for lap in range(again):
        calls += [ok("compact_context", f"summary {word(lap)}", upto=word(lap)), *(read(n) for n in range(20))]
    return calls


def green_rounds():
    """A refactoring in small steps: every edit is new, the checks after it always say the same."""
    return [call for n in range(25) for call in (
        ok("edit_file", "edited", path="a.py", text=word(n)), sh("pytest -q", "all passed"),
        sh("ruff check", "no findings"), sh("mypy", "no issues"))]  # fmt: skip


def red_rounds():
    """Fifteen different edits, and the test is red in the same words after each."""
    return [call for n in range(15) for call in (
        ok("edit_file", "edited", path="a.py", text=word(n)), sh("pytest -q", "one failed: test_total", 1))]  # fmt: skip


def bisect():
    """Commit after commit is checked out and tested, good or bad."""
    return [call for n in range(14) for call in (
        sh(f"git checkout {word(n)}", f"at {word(n)}"), sh("make test", "passed" if n % 3 else "failed"))]  # fmt: skip


def plan_again():
    """Thirty steps, and the plan is read again before each."""
    return [call for n in range(30) for call in (ok("read_file", "the plan", path="PLAN.md"), read(n))]


def pages():
    return [ok("next_page", f"page about {word(n)}") for n in range(40)]


def log_tail():
    return [call for n in range(20) for call in (sh("sleep 30"), sh("tail -n 3 train.log", f"epoch of {word(n)}"))]


def flaky():
    return [sh("pytest test_net.py", f"failed: host {word(n)} did not answer", 1) for n in range(8)]


def refused_edits(n):
    """Different edits refused for different reasons, and then one that is taken."""
    return [bad("edit_file", f"no match for {word(i)}", path="a.py", old=word(i)) for i in range(n)] + [
        ok("edit_file", "edited", path="a.py", old="right")]  # fmt: skip


def greps():
    return [sh(f"grep -rn {word(n)} src", "", 1) for n in range(15)]


def dead_links():
    return [bad("fetch_page", "HTTP 404: not found", url=f"https://example.org/{word(n)}") for n in range(25)]


def same_poll():
    """Nobody said that this tool is asked again and again by nature, and its name does not either."""
    return [ok("get_build", "running", id="main")] * 10 + [ok("get_build", "passed", id="main")]


def counting_poll():
    return [ok("get_build", f"{n + 1} % built", id="main") for n in range(40)]


def ps_rounds():
    return [call for _ in range(5) for call in (sh("sleep 20"), sh("ps aux", "python train.py"))]


def benchmarks():
    """Two settings in turn; the durations measured are never quite the same."""
    rng = random.Random(1)
    return [call for _ in range(6) for setting in ("small", "large") for call in (
        ok("set_cache", "set", size=setting), sh("./bench", f"finished in {rng.uniform(1, 2):.3f} s"))]  # fmt: skip


def key_sends(tool="press_keys"):
    return [ok(tool, "", keys=word(n)) for n in range(30)]


def cycle(length, calls=60):
    return [read(n % length) for n in range(calls)]


def numbers_differ():
    return [sh("python evaluate.py", f"score {100 + n}") for n in range(60)]


def argument_counts_up():
    return [ok("search_orders", "no such order", number=1000 + n) for n in range(60)]


def cosmetic_word():
    return [ok("search_docs", "nothing found", query=f"how to install {word(n)}") for n in range(60)]


def with_thoughts():
    return [call for n in range(30) for call in (
        ok("think", "", thought=f"maybe {word(n)}"), ok("get_order", "order is closed", id="a"))]  # fmt: skip


def refused_and_comment():
    """The same edit is refused again and again; between, a shell line that is a comment, another one each time."""
    return [call for n in range(30) for call in (
        bad("edit_file", "no match", path="a.py", old="x"), sh(f"# trying {word(n)}"))]  # fmt: skip


def refused_and_read():
    """Five times the same refused edit, then one file never read before."""
    return [call for n in range(12) for call in (*[bad("edit_file", "no match", path="a.py", old="x")] * 5, read(n))]


HEALTHY = {
    "twenty files, summed up, read again": (orientation(1), None, None, None),
    "the same three times over": (orientation(3), None, None, None),
    "edit, test, lint, type check": (green_rounds(), None, None, None),
    "one red test after fifteen edits": (red_rounds(), None, None, None),
    "bisect": (bisect(), None, None, None),
    "plan read again thirty times": (plan_again(), None, None, None),
    "next page forty times": (pages(), None, None, None),
    "sleep and a log with new lines": (log_tail(), None, None, None),
    "flaky test, new text": (flaky(), None, None, None),
    "eight refused edits, then fixed": (refused_edits(8), None, None, None),
    "fourteen refused edits, then fixed": (refused_edits(14), None, None, None),
    "fifteen greps without a match": (greps(), None, None, None),
    "twenty-five dead links": (dead_links(), 11, 13, 21),
    "undeclared poll, same text": (same_poll(), 6, 6, 9),
    "undeclared poll, counts up": (counting_poll(), 21, 25, None),
    "sleep and unchanged ps": (ps_rounds(), None, None, None),
    "two settings in turn, noisy time": (benchmarks(), 11, 12, 15),
    "thirty keys, no output": (key_sends(), 20, 25, 30),
}
STUCK = {
    "cycle of five": (cycle(5), 17, 18, 21),
    "cycle of twelve": (cycle(12), 33, 35, 39),
    "plain number differs": (numbers_differ(), 21, 25, 41),
    "argument counts up, same answer": (argument_counts_up(), 20, 25, 30),
    "cosmetic word, same answer": (cosmetic_word(), 20, 25, 30),
    "same call, a new thought each time": (with_thoughts(), 12, 12, 18),
    # The study let a comment count as work; here it is neutral, and the refused edit is caught at its 11th, 13th, 21st.
    "refused edit and a comment": (refused_and_comment(), 21, 25, 41),
    "five refused edits and a read": (refused_and_read(), None, None, None),
}


@pytest.mark.parametrize("column", range(3), ids=list(LIMITS))
@pytest.mark.parametrize("name", [*HEALTHY, *STUCK])
def test_where_a_made_up_session_is_stopped(name, column):
    """The call at which it stops is the one that follows from the rules by hand; None where it must not be stopped."""
    calls, *expected = (HEALTHY | STUCK)[name]
    assert stop(calls, list(LIMITS)[column]) == expected[column]


@pytest.mark.parametrize(("profile", "middle"), [("strict", 22), ("balanced", 23), ("conservative", 26)])
def test_a_shuffled_set_of_seven_is_caught(profile, middle):
    """Seven known calls in ever new order are caught in the fourth round, whatever the order."""
    stops = []
    for seed in range(25):
        rng = random.Random(seed)
        calls = [read(n) for _ in range(9) for n in rng.sample(range(7), 7)]
        stops.append(stop(calls, profile))
    assert statistics.median(stops) == middle
    assert max(stops) <= middle + 1
    assert min(stops) >= middle - 1


def test_sleep_alone_is_no_work():
    """Without the neutral list five rounds of sleep and ps would be a loop: with another word for waiting they are."""
    calls = [call for _ in range(5) for call in (ok("pause_a_bit", ""), ok("get_processes", "python train.py"))]
    assert [stop(calls, profile) for profile in LIMITS] == [9, 9, None]


def test_a_failing_grep_is_a_failure():
    """Exit code 2 is no answer: the same fifteen greps with it are stopped like dead links."""
    calls = [sh(f"grep -rn {word(n)} src", "no such folder", 2) for n in range(15)]
    assert [stop(calls, profile) for profile in LIMITS] == [11, 13, None]


# What came out of trying the rules on sessions that they were not tuned on.


@pytest.mark.parametrize("profile", LIMITS)
def test_poll_words_beat_the_verb_write(profile):
    """write_stdin looks at a running process: new output is progress, and unchanged output has ten times the laps."""
    assert stop([ok("write_stdin", f"line {word(n)}", chars="") for n in range(60)], profile) is None
    assert stop([ok("write_stdin", "no output", chars="")] * 130, profile) == 10 * LIMITS[profile][1]
    assert stop([ok("write_file", f"line {word(n)}", path="a") for n in range(60)], profile) is not None


class Batches:
    """The chain itself, for calls that overlap."""

    def __init__(self, profile="strict", **chain):
        self.policy = Policy(**chain) if chain else policy(profile)
        self.state, self.tools, self.trip = SessionState("s"), {}, None

    def call(self, name, arguments, **more):
        tool = self.tools.setdefault(name, Tool(name))
        return tool.call(arguments, self.policy, Signer(b"k"), world=None, **more)

    def run(self, rows, **more):
        """All start, then all end; rows are (tool, arguments, kind, answer)."""
        started = []
        for name, arguments, kind, answer in rows:
            call = self.call(name, arguments, **more)
            admission = self.policy.chain.admit(self.state, "r", call)
            assert not isinstance(admission, Refuse)
            started.append((admission.number, call, kind, answer))
        for number, call, kind, answer in started:
            failure = "permanent" if kind == "failed" else None
            outcome = Outcome(kind, failure=failure, exact=answer, volatile=answer, digits=answer)
            settled = self.policy.chain.settle(self.state, "r", number, call, outcome)
            self.trip = self.trip or settled.trip


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("sibling", ["cancelled", "failed"])
def test_siblings_of_a_failed_call_count_once(named, sibling):
    """One call of a batch of thirteen fails and the rest with it: four such batches are four failures at most."""
    batches = Batches(profile="strict")
    rows = [("read_file", {"path": word(n)}, "failed" if n == 0 else sibling, "!aborted") for n in range(13)]
    for turn in range(4):
        batches.run(rows, **({"batch": f"turn {turn}", "siblings": 13} if named else {}))
    assert batches.trip is None
    streak = Batches(profile="strict", plugins=[{"plugin": "failure_streak", "limit": 5}], mode="enforce")
    for _ in range(4):
        streak.run(rows)
    assert streak.trip is None


def test_one_after_the_other_they_count():
    """The same failures one by one are a row of failures, and the eleventh ends it."""
    batches = Batches(profile="strict")
    for n in range(11):
        batches.run([("read_file", {"path": word(n)}, "failed", "!aborted")])
    assert batches.trip.rule == "stagnation"


def test_unparsable_arguments_reach_no_tool():
    """Two texts that are no JSON are two calls, and neither they nor their failures count against the tool."""
    rules = [{"plugin": "signature_failures", "limit": 3}, {"plugin": "failure_streak", "limit": 4}]
    batches = Batches(plugins=rules, mode="enforce")
    first, second = (batches.call("edit_file", text) for text in ('{"path": "a', '{"path": "b'))
    assert first.signature != second.signature
    assert not first.reached
    for n in range(12):
        batches.run([("edit_file", '{"path": "a' + "x" * (n % 2), "failed", "!no JSON")])
    assert batches.trip is None
    for _ in range(3):
        batches.run([("edit_file", {"path": "a"}, "failed", "!no JSON")])
    assert batches.trip.rule == "signature_failures"


def clicks(error):
    """The page looked at is the same each time; the click before it is new, and said to have failed."""
    return [call for n in range(30) for call in (
        bad("click", f"{error} {word(n)}", element=word(n)), ok("get_page", "the list", at="top"))]  # fmt: skip


@pytest.mark.parametrize("profile", LIMITS)
def test_a_click_that_timed_out_may_have_worked(profile):
    """A new call with a new timeout clears the repeat counts: going back to the list between clicks is no loop."""
    assert stop(clicks("timed out waiting for"), profile) is None
    assert stop(clicks("no element"), profile) is not None


@pytest.mark.parametrize("profile", LIMITS)
def test_shell_polling_is_known_by_the_last_command(profile):
    """Thirteen unchanged looks at pods are patience; a loop that ends in something else is none."""
    looks = [sh("kubectl get pods -n web", "web-a  Pending")] * 13
    assert stop(looks, profile) is None
    assert stop([call for look in looks for call in (sh("sleep 5"), look)], profile) is None
    assert stop([sh("kubectl get pods | wc -l", "4")] * 13, profile) is not None


def token(n):
    rng = random.Random(n)
    return "".join(rng.choice("abcdefghABCDEFGH0123456789") for _ in range(24)) + "aB3"


def circle(n):
    page = word(n % 3)
    return ok("click", f"Opened https://shop.example/{page}?state={token(n)} ({page})", link=page)


@pytest.mark.parametrize(("profile", "at"), [("strict", 12), ("balanced", 12), ("conservative", 15)])
def test_fresh_tokens_hide_no_circle(profile, at):
    """Three pages in turn are three known calls although their addresses carry a new token each time."""
    assert stop([circle(n) for n in range(60)], profile) == at


@pytest.mark.parametrize(
    ("profile", "final", "passing"), [("strict", 11, 31), ("balanced", 13, 37), ("conservative", 21, 61)]
)
def test_transient_failures_count_a_third(profile, final, passing):
    """Stagnation gives pages that answer 503 three times the tries of pages that are not there."""
    alone = Policy(plugins=[{"plugin": "stagnation", "limit": float(LIMITS[profile][0])}], mode="enforce")
    for error, at in (("HTTP 404: not found", final), ("HTTP 503: service unavailable", passing)):
        calls = [bad("fetch_page", error, url=word(n)) for n in range(80)]
        assert Live(alone).stops_at(calls) == (at, "stagnation")
    assert stop(calls, profile) == LIMITS[profile][2]  # same_answer counts answers, and a 503 is one


@pytest.mark.parametrize("profile", LIMITS)
def test_tools_that_answer_ok_hide_their_progress(profile):
    """Scrolling with a bare "ok" is stopped as a repeat; returning the state, or comparing by it, is progress."""
    seen = iter(range(1000))
    bare = [ok("scroll_down", "ok")] * 40
    assert stop(bare, profile) in (6, 9)
    assert stop(bare, profile, result_key=lambda answer: f"{answer} at {word(next(seen))}") is None
    assert stop([ok("scroll_down", f"ok, now at {word(n)}") for n in range(40)], profile) is None
    assert stop([ok("click", "ok", element=word(n)) for n in range(40)], profile) == LIMITS[profile][2]


def test_a_send_tool_counts_as_a_write():
    """Where the name says send, the answers are left out, and different keys never make a row of equal answers."""
    assert [stop(key_sends("send_keys"), profile) for profile in LIMITS] == [None, None, None]

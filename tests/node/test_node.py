"""The proxy between a client and a server that are both written in TypeScript, over standard streams and over HTTP."""

from __future__ import annotations

import contextlib
import json

import pytest
from between import PROXY, Client, everything, left, play, proxy_by_http, server_by_http, steady, taped

LISTING, LISTED_ANEW, TASK = "tools/list", "notifications/tools/list_changed", "tasks/get"
CEILINGS = """
[[tool_plugins]]
plugin = "call_ceiling"
tools = {echo = 2, get-structured-content = 1, simulate-research-query = 1}
"""
METHODS = {
    "initialize", "notifications/initialized", "ping", "tools/list", "tools/call", "roots/list", "sampling/createMessage",
    "elicitation/create", "notifications/progress", "notifications/cancelled", "notifications/message",
    "logging/setLevel", "resources/list", "resources/templates/list", "resources/read", "resources/subscribe",
    "resources/unsubscribe", "notifications/resources/updated", "notifications/resources/list_changed", "prompts/list",
    "prompts/get", "completion/complete", "notifications/roots/list_changed", "notifications/tools/list_changed",
    "notifications/tasks/status", "tasks/get", "tasks/result", "no/such/method",
}  # fmt: skip


def rules(folder, settings):
    """The variables of a proxy with these settings."""
    path = folder / "guard.toml"
    path.write_text(settings, encoding="utf-8")
    return {"TOOLGUARD_CONFIG": str(path)}


@pytest.fixture(scope="module")
def runs(node, tmp_path_factory):
    """All features, played at once directly and through the proxy, over standard streams and over HTTP."""
    folder = tmp_path_factory.mktemp("node")
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(server_by_http(node, folder)) for _ in range(3)]  # its sessions are not apart
        listener = stack.enter_context(proxy_by_http(urls[1], {}))
        inner = taped(folder / "server", everything(node, folder))
        targets = {
            "stdio": {"command": everything(node, folder)},
            "stdio proxied": {"command": taped(folder / "client", (*PROXY, "--", *inner))},
            "http": {"url": urls[0]},
            "http proxied": {"url": listener},
            "stdio to http": {"command": (*PROXY, "--url", urls[2])},
        }
        clients = {name: stack.enter_context(Client(node, "features", **target)) for name, target in targets.items()}
        found = {name: client.steps() for name, client in clients.items()}
    assert left(folder, *urls) == []
    return folder, found


def told(steps, name, *, ordered):
    """The messages of a step, as far as they are the same in each session with this server."""
    found = [message for each in steps[name]["tape"] for message in each.values()]
    if name == "initialize":  # sent before a client by HTTP can have begun to listen
        found = [message for message in found if message.get("method") != LISTED_ANEW]
    if name == "task":  # runs by itself, and is looked at as often as there is time: later requests have other numbers
        found = [
            {key: value for key, value in message.items() if key != "id"}
            for message in found
            if message.get("method") != TASK and "pollInterval" not in message.get("result", {})
        ]
    texts = [steady(message) for message in found]
    return texts if ordered and name != "task" else sorted(texts)


def test_each_byte_passes_in_both_directions(runs):
    """What the client wrote is to the byte what the server read, and what the server wrote is what the client read."""
    folder, _ = runs
    for way in ("in", "out"):
        passed = (folder / f"server.{way}").read_bytes()
        assert passed == (folder / f"client.{way}").read_bytes()
        assert passed.count(b"\n") > 50


def test_each_kind_of_message_is_among_them(runs):
    """The sessions that are compared hold every method that this server and this client have for each other."""
    for name, steps in runs[1].items():
        seen = {message.get("method") for step in steps.values() for each in step["tape"] for message in each.values()}
        assert METHODS - seen <= ({LISTED_ANEW} if "http" in name else set()), name


@pytest.mark.parametrize(
    ("proxied", "direct"), [("stdio proxied", "stdio"), ("http proxied", "http"), ("stdio to http", "http")]
)
def test_a_session_is_the_same_through_the_proxy(proxied, direct, runs):
    """Each step gives the same and takes the same messages as without the proxy, but for random ids and the time."""
    one, other = runs[1][proxied], runs[1][direct]
    assert list(one) == list(other)
    for name in one:
        outcomes = [{key: value for key, value in step.items() if key != "tape"} for step in (one[name], other[name])]
        assert steady(outcomes[0]) == steady(outcomes[1]), name
        ordered = direct == "stdio"  # what comes over several streams has no order
        assert told(one, name, ordered=ordered) == told(other, name, ordered=ordered), name


def test_the_listing_is_the_same_to_the_byte(runs):
    """The tools that a model is shown are the same bytes with the proxy and without it, on every way there is."""
    listings = {json.dumps(steps[LISTING]["result"]) for steps in runs[1].values()}
    assert len(listings) == 1
    assert len(json.loads(listings.pop())["tools"]) > 15


def test_no_step_failed_that_should_not(runs):
    """Errors were only those that the client provoked: the sessions that were compared are sessions that worked."""
    for steps in runs[1].values():
        assert [name for name, step in steps.items() if "error" in step] == [
            'tools/call trigger-url-elicitation {"url":"https://example.org/","elicitationId":"two","errorPath":true}',
            "resources/read demo://resource/none",
            "prompts/get args-prompt {}",
            "prompts/get no-such-prompt {}",
            "no such method",
        ]
        assert steps["cancelled"]["result"]["message"].endswith("changed my mind")


@pytest.fixture(scope="module", params=["stdio", "http", "stdio to http"])
def over(request, node, tmp_path_factory):
    """What the steps of a client gave that goes over its ceilings."""
    folder = tmp_path_factory.mktemp("over")
    env = rules(folder, CEILINGS)
    with contextlib.ExitStack() as stack:
        if request.param == "stdio":
            target = {"command": (*PROXY, "--", *everything(node, folder)), "env": env}
        else:
            url = stack.enter_context(server_by_http(node, folder))
            target = {"command": (*PROXY, "--url", url), "env": env}
            if request.param == "http":
                target = {"url": stack.enter_context(proxy_by_http(url, env))}
        steps = play(node, "refusals", **target)
    assert left(folder) == []
    return steps


def test_a_refusal_is_a_result_and_the_client_goes_on(over):
    """Calls over the ceiling are error results with the reason as text and as data; other calls go on to the server."""
    assert ["isError" in over[f"echo {number}"]["result"] for number in (1, 2, 3, 4)] == [False, False, True, True]
    result = over["echo 3"]["result"]
    assert result["isError"] is True
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert (result["structuredContent"]["rule"], result["structuredContent"]["tool"]) == ("call_ceiling", "echo")
    assert over["ping"]["result"] == {}
    assert over["another tool"]["result"]["content"][0]["text"] == "The sum of 1 and 2 is 3."


def test_a_client_that_checks_results_reads_the_reason_too(over):
    """A refusal by a tool whose results have a schema reaches the client as what it is, before and after a listing."""
    assert over["weather"]["result"]["structuredContent"]["temperature"] == 36
    before, after = over["over, not listed"]["result"], over["over, listed"]["result"]
    assert before["isError"] is after["isError"] is True
    assert before["structuredContent"]["rule"] == "call_ceiling"
    assert "structuredContent" not in after
    assert json.loads(after["content"][0]["text"])["rule"] == "call_ceiling"


def test_a_client_that_asks_for_a_task_reads_the_reason_too(over):
    """A refused task is an error with the reason in it, not an answer that the client cannot read."""
    assert over["task 1"]["result"] == "taskCreated"
    said = over["task 2"]["result"]
    assert json.loads(said[said.index("{") :])["rule"] == "call_ceiling"


def test_ceilings_outlive_a_proxy_that_is_killed_in_mid_call(node, tmp_path):
    """A proxy killed while a call runs and started anew by the client counts on: four calls in all, then a refusal."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    env = rules(tmp_path, '[[tool_plugins]]\nplugin = "call_ceiling"\nsession = 4\n') | {"TOOLGUARD_STORE": store}
    command = (*PROXY, "--session", "job", "--", *everything(node, tmp_path))
    steps = play(node, "killed", command=command, env=env)
    assert "closed" in steps["in mid-call"]["error"]["message"]
    scopes = [steps[f"echo {number}"]["result"].get("structuredContent", {}).get("scope") for number in (2, 3, 4)]
    assert scopes == [None, None, "session"]
    assert steps["ping"]["result"] == {}
    assert left(tmp_path) == []

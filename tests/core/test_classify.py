import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_toolguard.core.classify import RISKS, TOOL_CLASSES, classify, is_shell_like
from otel_toolguard.core.commands import command_text
from otel_toolguard.core.shell import CAP

BY_NAME = {
    "read": "Read read_file Grep Glob LS view cat ls open goto scroll_down find_file search_dir get_order_status"
    " API-post-search find_user_id list_all_products search-docs TodoRead get_book_details view_transfer Lookup"
    " functions.read_file order_status read_terminal write_stdin BashOutput wait TaskOutput",
    "write": "Write Edit MultiEdit NotebookEdit apply_patch str_replace_editor insert create_issue TodoWrite delete_row"
    " book_reservation cancel_order update_task_status modify_pending_items exchange_items return_delivered_order_items"
    " transfer_funds send_mail API-post-page get_or_create_user search_replace post_message",
    "network": "WebFetch web_search fetch tavily_search download_file browser_click open_url",
    "agent": "Task Agent delegate_task handoff spawn_agent transfer_to_human_agents TransferToBilling",
    "mcp": "mcp__github__search mcp:fs:read mcp_fs_write mcp_tool_call MCP__x__y",
    "exec": "bash Shell run_shell_command RunCommand run_terminal_cmd powershell python3 ipython execute_code"
    " code_interpreter my_terminal",
    "other": "frobnicate think calculate sql execute_sql submit address_book read_web_page (malformed) run",
}
PROGRAMS = [
    ("ls -la", "exec"),
    ("go test ./...", "build"),
    ("curl -s x | make", "build"),
    ("pip3.11 install x", "build"),
    ("gcc-12 a.c", "build"),
    ("python -m pytest -q", "build"),
    ("curl https://example.com", "network"),
    ("git -C repo -c a=b fetch --all", "network"),
    ("git push origin main", "network"),
    ("git status && git commit -m 'git push'", "exec"),
    ("sed -i s/a/b/ f", "exec"),
    ("echo 'make; curl'", "exec"),
    ("", "exec"),
]


@pytest.mark.parametrize(
    ("tool", "expected"), [(name, kind) for kind, names in BY_NAME.items() for name in names.split()]
)
def test_class_by_name(tool: str, expected: str) -> None:
    """The name alone gives the class, with case, humps, dashes and digits out of play."""
    assert classify(tool).tool_class == expected


@pytest.mark.parametrize(("command", "expected"), PROGRAMS)
def test_class_by_programs(command: str, expected: str) -> None:
    """A shell is classed by what it runs: build before network before exec."""
    assert classify("bash", {"command": command}).tool_class == expected


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("mcp__github__create_issue", None, "write"),
        ("mcp__github__search", None, "read"),
        ("mcp_github_get_issue", None, "read"),
        ("mcp__box__bash", {"command": "make"}, "build"),
        ("mcp__x__frobnicate", None, "other"),
        ("Read", None, None),
    ],
)
def test_finer_guess_behind_an_mcp_name(tool: str, arguments: dict[str, object] | None, expected: str | None) -> None:
    """An mcp name keeps its class and carries what it would be without the prefix."""
    assert classify(tool, arguments).finer == expected


@pytest.mark.parametrize(
    ("tool", "command", "expected"),
    [
        ("str_replace_based_edit_tool", "view", "read"),
        ("str_replace_editor", "str_replace_editor view /x", "read"),
        ("text_editor_20250124", "view", "read"),
        ("edit_file", "view", "read"),
        ("str_replace_editor", "create", "write"),
        ("str_replace_editor", "str_replace", "write"),
    ],
)
def test_an_editor_that_views_reads(tool: str, command: str, expected: str) -> None:
    """The argument command of an editor tells looking from changing."""
    assert classify(tool, {"command": command}).tool_class == expected


@pytest.mark.parametrize(
    ("tool", "command", "expected"),
    [
        ("Read", None, "read_only"),
        ("Edit", None, "reversible"),
        ("send_email", None, "irreversible"),
        ("mcp__x__send_email", None, "reversible"),
        ("transfer_to_sales", None, "reversible"),
        ("write_stdin", None, "reversible"),
        ("bash", "ls", "reversible"),
        ("bash", "make && rm -rf build", "irreversible"),
        ("bash", "find . -exec rm {} +", "irreversible"),
        ("bash", "mkfs.ext4 /dev/sda", "irreversible"),
        ("bash", "git -C x push", "irreversible"),
        ("bash", "git reset --hard", "irreversible"),
        ("bash", "git pull", "reversible"),
        ("bash", "curl -X DELETE http://x/1", "irreversible"),
        ("bash", "kubectl -n a delete pod x", "irreversible"),
        ("bash", "echo rm", "reversible"),
    ],
)
def test_risk(tool: str, command: str | None, expected: str) -> None:
    """Reads risk nothing, and what cannot be taken back is named so."""
    assert classify(tool, {"command": command} if command else None).risk == expected


@pytest.mark.parametrize(
    ("tool", "command", "expected"),
    [
        ("think", None, True),
        ("plan", None, True),
        ("mcp__st__sequentialthinking", None, True),
        ("update_plan", None, False),
        ("notebook", None, False),
        ("bash", "# step 2\n", True),
        ("bash", "echo hi; sleep 5 && true", True),
        ("bash", ": && wait", True),
        ("bash", "echo hi > f", False),
        ("bash", "echo $(curl x)", False),
        ("bash", "sleep 5; make", False),
        ("bash", "", False),
        ("bash", "X=1", False),
    ],
)
def test_neutral(tool: str, command: str | None, expected: bool) -> None:
    """Thinking, comments and waiting are neutral, anything that looks or acts is not."""
    assert classify(tool, {"command": command} if command is not None else None).neutral is expected


@pytest.mark.parametrize(
    ("tool", "command", "expected"),
    [
        ("poll_job", None, True),
        ("write_stdin", None, True),
        ("get_order_status", None, True),
        ("TaskOutput", None, True),
        ("mcp__health__search", None, False),
        ("update_task_status", None, False),
        ("create_output", None, False),
        ("stopwatch", None, False),
        ("bash", "ps aux", True),
        ("bash", "sleep 30; tail -5 log", True),
        ("bash", "tail -f $(ls -t | head -1)", True),
        ("bash", "ps aux | grep x", False),
        ("bash", "cat log | tail -5", False),
        ("bash", "kubectl -n get get pods", True),
        ("bash", "kubectl rollout status deploy/x", True),
        ("bash", "kubectl apply -f x", False),
        ("bash", "docker compose logs", True),
        ("bash", "docker run get", False),
        ("bash", "systemctl --user status x", True),
        ("bash", "gh run watch 12", True),
        ("bash", "gh pr view 1", False),
        ("bash", "curl -s localhost:80/health", True),
        ("bash", "curl -s http://x/jobs/1/status?full=1", True),
        ("bash", "wget -qO- x/healthz/", True),
        ("bash", "curl http://x/unhealth", False),
        ("bash", "kubectl get pods; make", False),
        ("Read", "ps", False),
    ],
)
def test_poll(tool: str, command: str | None, expected: bool) -> None:
    """A poller is known by a word of its name or by the last command, if no pipe feeds that."""
    assert classify(tool, {"command": command} if command else None).poll is expected


@pytest.mark.parametrize("tool", ["write_stdin", "write_output", "write_status", "mcp__x__write_stdin"])
def test_a_poller_by_name_never_writes(tool: str) -> None:
    """What a poller answers is never left out of comparisons."""
    answer = classify(tool)
    assert answer.poll
    assert "write" not in (answer.tool_class, answer.finer)


@pytest.mark.parametrize(
    ("tool", "hints", "tool_class", "risk"),
    [
        ("frobnicate", {"readOnlyHint": True}, "read", "read_only"),
        ("frobnicate", {"readOnlyHint": False, "destructiveHint": True}, "write", "irreversible"),
        ("frobnicate", {"readOnlyHint": False, "destructiveHint": False}, "write", "reversible"),
        ("frobnicate", {"readOnlyHint": False, "idempotentHint": True}, "write", "reversible"),
        ("frobnicate", {"readOnlyHint": False, "idempotentHint": False}, "write", "reversible"),
        ("frobnicate", {"readOnlyHint": True, "idempotentHint": False}, "read", "read_only"),
        ("frobnicate", {"idempotentHint": True}, "other", "reversible"),
        ("frobnicate", {"openWorldHint": True}, "network", "reversible"),
        ("frobnicate", {"readOnlyHint": None}, "other", "reversible"),
        ("update_x", {"readOnlyHint": True}, "read", "read_only"),
        ("mcp__a__update_x", {"readOnlyHint": True}, "mcp", "read_only"),
        ("mcp__a__x", {"destructiveHint": True}, "mcp", "irreversible"),
        ("Grep", {}, "read", "read_only"),
    ],
)
def test_hints_of_the_framework(tool: str, hints: dict[str, object], tool_class: str, risk: str) -> None:
    """Metadata beats the name, but an mcp tool stays one."""
    answer = classify(tool, hints=hints)
    assert (answer.tool_class, answer.risk) == (tool_class, risk)


def test_a_hint_makes_a_shell() -> None:
    """A tool of kind shell is classed by its command whatever it is called."""
    assert classify("do_it", {"cmd": "make"}, hints={"kind": "shell"}).tool_class == "build"


@pytest.mark.parametrize("tool", ["Read", "bash", "mcp__x__y", "write_stdin"])
def test_an_override_beats_everything(tool: str) -> None:
    """A declared class is the class, and the reason says so."""
    answer = classify(tool, {"command": "make"}, override="network", hints={"readOnlyHint": True})
    assert answer.tool_class == "network"
    assert "declared" in answer.why


@pytest.mark.parametrize(
    ("tool", "expected"), [("(malformed)", False), ("(empty)", False), (" ", False), ("f(x)", True)]
)
def test_reached(tool: str, expected: bool) -> None:
    """A name in parentheses stands for a call that no tool received."""
    assert classify(tool).reached is expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, None),
        ({}, None),
        ({"command": "ls"}, "ls"),
        ({"cmd": ["bash", "-c", "a b"]}, "bash -c 'a b'"),
        ({"script": ["ls -l", "make x"]}, "ls -l\nmake x"),
        ({"command": 3, "cmd": "ls"}, "ls"),
        ({"command": [1]}, None),
        ({"query": "ls"}, None),
    ],
)
def test_command_text(arguments: dict[str, object] | None, expected: str | None) -> None:
    """Only command, cmd and script hold command text, as a string or a list of strings."""
    assert command_text(arguments) == expected


@pytest.mark.parametrize(
    ("tool", "expected"),
    [("bash", True), ("local_shell", True), ("exec2", True), ("RunCommand", True), ("commands", False), ("", False)],
)
def test_is_shell_like(tool: str, expected: bool) -> None:
    """A whole word of the name has to say shell."""
    assert is_shell_like(tool) is expected


@given(st.one_of(st.text(max_size=30), st.from_regex(r"[a-z_.:0-9-]*(shell|bash|cmd|exec)[a-z_.:0-9-]*")))
def test_is_shell_like_knows_every_plain_word(tool: str) -> None:
    """Without humps the answer is that of splitting the folded name at all but letters."""
    words = {"shell", "bash", "sh", "terminal", "command", "cmd", "exec", "powershell"}
    folded = tool.lower()
    assert is_shell_like(folded) is bool(set(re.findall("[a-z]+", folded)) & words)


@given(
    st.text(max_size=300),
    st.dictionaries(st.sampled_from(["command", "cmd", "x"]), st.one_of(st.text(), st.lists(st.text()), st.none())),
)
def test_any_call_has_a_class(tool: str, arguments: dict[str, object]) -> None:
    """No name and no arguments raise, and the answer is one of the known words."""
    answer = classify(tool, arguments)
    assert answer.tool_class in TOOL_CLASSES
    assert answer.risk in RISKS
    assert answer.why.endswith(".")
    assert classify("bash", {"command": tool}).tool_class in ("exec", "build", "network")


def test_of_a_list_of_words_no_more_is_joined_than_is_read():
    """A command given as words is read like the same text, and what lies beyond what is read costs nothing."""
    endless = ["rm", "-rf", *["x" * 10_000] * 10_000]
    text = command_text({"command": endless})
    assert text.startswith("rm -rf xxx")
    assert len(text) < 2 * CAP
    assert classify("bash", {"command": endless}) == classify("bash", {"command": "rm -rf " + "x" * CAP})
    assert command_text({"command": ["a"] * 50}) == " ".join(["a"] * 50)
    assert command_text({"command": ["ls", 5]}) is None
    assert command_text({"command": []}) is None
    assert command_text({"command": ["echo", "a b"]}) == "echo 'a b'"

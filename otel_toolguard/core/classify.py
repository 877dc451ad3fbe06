"""What kind of work a tool call does, from its name and, for shells, its text.

Order of decision: an explicit override, hints of the framework, the exact name,
the words of the name, the programs of shell text, and ``other`` if nothing
speaks. The answer is a guess that errs away from ``write``: the results of
writes are left out of comparisons, so a wrong ``write`` hides progress.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from otel_toolguard.core.commands import command_text
from otel_toolguard.core.shell import Command, Scan, programs

if TYPE_CHECKING:
    from collections.abc import Mapping

ToolClass = Literal["read", "write", "exec", "build", "network", "mcp", "agent", "other"]
Risk = Literal["read_only", "reversible", "irreversible"]
TOOL_CLASSES: tuple[ToolClass, ...] = get_args(ToolClass)
RISKS: tuple[Risk, ...] = get_args(Risk)


class Classified(NamedTuple):
    """What is known about a call before it runs."""

    tool_class: ToolClass
    risk: Risk
    programs: tuple[str, ...]
    """Base names of the programs that shell text runs; empty for other tools."""
    finer: ToolClass | None
    """For an ``mcp`` name the class it would have without the prefix, else None."""
    neutral: bool
    """True for a call that neither looks nor acts, such as think or ``sleep 5``."""
    poll: bool
    """True for a call that is meant to be repeated until something changes."""
    reached: bool
    """False if no tool stands behind the name, as in ``(malformed)``."""
    why: str
    """One English sentence that names the rule that decided."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELL_WORDS = _words("shell bash sh terminal command cmd exec powershell")
_POLL_WORDS = _words("poll wait watch await status progress health stdin output")
_NEUTRAL_NAMES = _words("think plan note sequentialthinking")
_NEUTRAL_PROGRAMS = _words("echo true sleep wait :")

# Names are compared without case, separators and digits: WebFetch = web_fetch = webfetch.
_EXACT: dict[str, ToolClass] = {}
for _tool_class, _names in {
    "write": "write edit multi_edit notebook_edit patch apply_patch apply_diff file_change write_file edit_file"
    " create_file str_replace str_replace_editor str_replace_based_edit_tool insert delete_file move_file"
    " search_replace find_replace find_and_replace text_editor file_editor editor",
    "read": "read grep glob ls list read_file read_many_files list_directory search_files view cat head find_files"
    " codebase_search open goto scroll_down scroll_up find_file search_dir search_file lookup",
    "network": "web_fetch web_search fetch http_request browser_navigate requests_get tavily_search",
    "agent": "task agent delegate_task handoff spawn_agent",
    "exec": "python execute_code code_interpreter run_python ipython cd",
    "other": "submit finish sql execute_sql",
}.items():
    _EXACT |= dict.fromkeys(_names.replace("_", "").split(), _tool_class)  # type: ignore[arg-type]
_SHELL_NAMES = _words(
    "bash shell terminal runshellcommand executecommand runcommand execcommand localshell runterminalcmd powershell"
)
_SHELL_IF_TEXT = _words("run cmdrun")  # too common a word to be a shell without a command argument

_READ_VERBS = _words("read get list search view find show describe lookup inspect scroll")
_WRITE_VERBS = _words(
    "write edit patch create update delete insert rename cancel send modify replace remove add set put upload save"
    " append overwrite copy upsert merge publish deploy purchase pay refund assign approve reject enable disable"
    " schedule reschedule register reserve subscribe unsubscribe revoke grant reply archive restore change post"
)
_YIELDING = _words("post")  # an HTTP verb in names such as post-search
_NOUN_OR_VERB = _words("book order return transfer exchange charge submit")
_OTHER_WORDS: tuple[tuple[ToolClass, frozenset[str]], ...] = (
    ("network", _words("web http url browser fetch download")),
    ("agent", _words("subagent handoff delegate")),
)
_FINAL_VERBS = _words("send book transfer delete deploy pay purchase")

_BUILD = _words(
    "go cargo make cmake ninja meson bazel bazelisk buck2 mvn mvnw gradle gradlew ant sbt npm npx pnpm yarn bun deno"
    " pip pip3 pipx uv poetry pdm hatch tox nox pytest conda mamba docker podman buildah kaniko apt apt-get apk dnf yum"
    " brew gcc g++ clang rustc javac tsc webpack vite dotnet msbuild swift xcodebuild rake bundle gem mix rebar3"
    " composer"
)
_NETWORK = _words(
    "curl wget ssh scp sftp rsync nc ncat telnet ftp http https xh dig nslookup ping gh glab aws gcloud az kubectl helm"
)
_GIT_NETWORK = _words("clone fetch pull push ls-remote submodule")
_DESTRUCTIVE = _words(
    "rm rmdir unlink shred wipefs dd fdisk parted shutdown reboot halt poweroff kill pkill killall dropdb dropuser"
    " userdel groupdel"
)
_DESTRUCTIVE_SUBCOMMANDS = {
    "git": _words("push clean"),
    "kubectl": _words("delete drain"),
    "helm": _words("uninstall delete"),
    "docker": _words("rm rmi prune"),
    "npm": _words("publish unpublish"),
    "cargo": _words("publish"),
    "poetry": _words("publish"),
    "uv": _words("publish"),
}
_LOOKING = _words("get status watch wait logs top")
_LOOKING_PROGRAMS = _words("kubectl docker systemctl")
_GROUPS = _words("rollout compose container service")  # words between a program and its subcommand
_HEALTH_PATH = re.compile(r"/(?:health|healthz|ready|status)/*\Z")
_VALUE_OPTIONS = _words(
    "-C -c --git-dir --work-tree --namespace -n --context --kubeconfig --cluster -s --server -R --repo -H --host"
    " -M --machine -f --file -p --project-name --exec-path --project-directory --env-file"
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LETTERS = re.compile("[a-z]+")
_SEGMENT = re.compile("__|[:./]")
_LONGEST_NAME = 256  # characters of a tool name worth remembering; a longer one is an accident


def _tokens(name: str) -> list[str]:
    return _LETTERS.findall(_CAMEL.sub(" ", name).lower())


@lru_cache(maxsize=1024)
def is_shell_like(tool: str) -> bool:
    """True if a word of the tool's name says that it runs command lines.

    Words end at everything but letters, and in ``RunCommand`` at the hump. For such
    tools the working directory belongs to what the call means.
    """
    return bool(_SHELL_WORDS.intersection(_LETTERS.findall(tool.lower())) or _SHELL_WORDS.intersection(_tokens(tool)))


class _Name(NamedTuple):
    """What the name alone says."""

    answer: Classified
    shell: bool
    """True if command text, where there is any, decides the class."""
    shell_if_text: bool
    edits: bool
    """True if the argument ``command="view"`` turns the call into a read."""


def classify(
    tool: str,
    arguments: Mapping[str, object] | None = None,
    *,
    override: ToolClass | None = None,
    hints: Mapping[str, object] | None = None,
) -> Classified:
    """What kind of work a call does.

    Args:
        tool: the tool's name as the model said it.
        arguments: the call's arguments; None if only the name is known.
        override: the class that the user declared; it beats every guess.
        hints: metadata of the framework: ``readOnlyHint``, ``destructiveHint``,
            ``idempotentHint`` and ``openWorldHint`` as in the tool annotations of MCP,
            and ``kind="shell"``.

    Returns:
        The class and what goes with it; never an error, at worst ``other``.
    """
    name = _by_name(tool) if len(tool) <= _LONGEST_NAME else _by_name.__wrapped__(tool)
    answer = name.answer
    shell = name.shell or (hints is not None and hints.get("kind") == "shell")
    if arguments and (shell or name.shell_if_text or name.edits):
        text = command_text(arguments)
        if text is not None and (shell or name.shell_if_text):
            answer = _by_text(answer, programs(text), text)
        elif text is not None and _views(tool, text):
            answer = _renamed(answer, "read", "read_only", "The argument 'command' is 'view', so it only reads.")
    if hints:
        answer = _hinted(answer, hints)
    if override is not None:
        risk: Risk = "read_only" if override == "read" else "reversible" if answer.risk == "read_only" else answer.risk
        answer = answer._replace(tool_class=override, risk=risk, why=f"The class {override!r} was declared.")
    return answer


def _renamed(answer: Classified, tool_class: ToolClass, risk: Risk, why: str) -> Classified:
    """The answer with another class, which for an mcp name is the finer guess."""
    if answer.tool_class == "mcp":
        return answer._replace(finer=tool_class)
    return answer._replace(tool_class=tool_class, risk=risk, why=why)


@lru_cache(maxsize=1024)
def _by_name(tool: str) -> _Name:
    segments = [part for part in _SEGMENT.split(tool) if part]
    folded = tool.casefold()
    mcp = folded.startswith(("mcp__", "mcp:", "mcp_")) or folded == "mcp_tool_call"
    last = segments[-1] if segments else ""
    if mcp and len(segments) == 1:
        last = last[4:]
    tokens = _tokens(last)
    key = "".join(tokens)
    shell = is_shell_like(tool) or key in _SHELL_NAMES
    poll = _polls(tokens)
    tool_class, why = _name_class(tokens, key, shell=shell)
    if poll and (tool_class in ("write", "other") or (shell and tool_class == "exec")):
        tool_class, why = "read", "A word of the name says that the tool waits or looks, so it reads."
    risk: Risk = "read_only" if tool_class == "read" and "write" not in tokens else "reversible"
    if tool_class in ("write", "network", "other") and _FINAL_VERBS.intersection(_verbs(tokens)):
        risk = "irreversible"
    finer: ToolClass | None = None
    if mcp:
        tool_class, finer, risk, why = "mcp", tool_class, "reversible", f"The name {tool[:80]!r} has the prefix of MCP."
    reached = bool(tool.strip()) and not (tool.startswith("(") and tool.endswith(")"))
    answer = Classified(tool_class, risk, (), finer, key in _NEUTRAL_NAMES, poll, reached, why)
    edits = _EXACT.get(key) == "write" or "editor" in tokens
    return _Name(answer, shell and key not in _EXACT, key in _SHELL_IF_TEXT, edits)


def _name_class(tokens: list[str], key: str, *, shell: bool) -> tuple[ToolClass, str]:
    if key in _EXACT:
        return _EXACT[key], f"The name is in the table of {_EXACT[key]} tools."
    if tokens[:2] == ["transfer", "to"] and len(tokens) > 2:
        return "agent", "The name begins with transfer_to, which hands over to an agent."
    found: list[ToolClass] = [tool_class for tool_class, words in _OTHER_WORDS if words.intersection(tokens)]
    verb = _verb_class(tokens)
    if verb is not None:
        found.append(verb)
    if shell and found != ["read"]:
        return "exec", "The name says shell; no command text is known."
    if len(found) == 1:
        return found[0], f"A word of the name belongs to {found[0]} tools."
    if found:
        return "other", f"The words of the name disagree: {' and '.join(found)}."
    return "other", "Nothing in the name says what the tool does."


def _verbs(tokens: list[str]) -> list[str]:
    """The words that act on something, in order.

    A word such as book or transfer is a verb only in front of an object, and a noun
    in a name that looks: get_book, transfer_status.
    """
    looks = not _READ_VERBS.isdisjoint(tokens)
    noun = looks or not _POLL_WORDS.isdisjoint(tokens)
    found = []
    for at, token in enumerate(tokens):
        if token in _WRITE_VERBS:
            if not (looks and token in _YIELDING):
                found.append(token)
        elif token in _NOUN_OR_VERB and not noun and (at + 1 < len(tokens) or at == 0):
            found.append(token)
    return found


def _verb_class(tokens: list[str]) -> ToolClass | None:
    """Read or write by the first verb; "and" or "or" before a write verb makes it a write."""
    writes = _verbs(tokens)
    reads = [at for at, token in enumerate(tokens) if token in _READ_VERBS]
    if not writes:
        return "read" if reads else None
    first_write = tokens.index(writes[0])
    joined = first_write > 0 and tokens[first_write - 1] in ("and", "or")
    return "read" if reads and reads[0] < first_write and not joined else "write"


def _polls(tokens: list[str]) -> bool:
    return not _POLL_WORDS.isdisjoint(tokens) and all(verb == "write" for verb in _verbs(tokens))


def _views(tool: str, text: str) -> bool:
    head = text.split(None, 2)[:2]  # some harnesses put the tool's own name before its command
    return head[:1] == ["view"] or head == [tool, "view"]


def _by_text(answer: Classified, scan: Scan, text: str) -> Classified:
    """The answer for a shell, from the programs that its text runs."""
    build = next((c.program for c in scan.commands if _listed(c.program, _BUILD)), None)
    network = next((c.program for c in scan.commands if _goes_out(c)), None)
    tool_class: ToolClass = "build" if build else "network" if network else "exec"
    decider = build or network
    why = (
        f"The program {decider[:80]!r} is in the table of {tool_class} programs."
        if decider
        else ("The text runs no program of the build or network table.")
    )
    risk: Risk = "irreversible" if any(map(_destroys, scan.commands)) else "reversible"
    answer = _renamed(answer, tool_class, risk, why)
    neutral = answer.neutral or _is_neutral(scan, text)
    return answer._replace(programs=scan.programs, neutral=neutral, poll=answer.poll or _looks(scan.last))


def _listed(program: str, table: frozenset[str]) -> bool:
    """True if the table has the program, perhaps under a version such as pip3.11."""
    return program in table or program.rstrip("0123456789.-") in table


def _subcommands(command: Command) -> list[str]:
    """The first two words behind a program and its own options."""
    found: list[str] = []
    words = iter(command.words[1:])
    for word in words:
        if word in _VALUE_OPTIONS:
            next(words, None)
        elif not word.startswith("-"):
            found.append(word)
            if len(found) == 2:
                break
    return found


def _goes_out(command: Command) -> bool:
    if command.program == "git":
        return not _GIT_NETWORK.isdisjoint(_subcommands(command)[:1])
    return _listed(command.program, _NETWORK)


def _destroys(command: Command) -> bool:
    program = command.program
    if program in _DESTRUCTIVE or program.startswith("mkfs"):
        return True
    if program == "curl":
        return "DELETE" in command.words or "-XDELETE" in command.words
    if program == "git" and "reset" in _subcommands(command)[:1]:
        return "--hard" in command.words
    return not _DESTRUCTIVE_SUBCOMMANDS.get(program, frozenset()).isdisjoint(_subcommands(command))


def _is_neutral(scan: Scan, text: str) -> bool:
    if scan.truncated:
        return False
    if scan.commands:
        return all(c.program in _NEUTRAL_PROGRAMS and not c.writes for c in scan.commands)
    lines = [line.lstrip() for line in text.splitlines()]
    return any(lines) and all(line.startswith("#") for line in lines if line)


def _looks(command: Command | None) -> bool:
    """True if shell text ends in a look at something that runs."""
    if command is None or command.reads_pipe:
        return False
    if command.program in ("ps", "tail"):
        return True
    if command.program in ("curl", "wget"):
        return any(_HEALTH_PATH.search(re.split("[?#]", word, maxsplit=1)[0]) for word in command.words[1:])
    words = _subcommands(command)
    if command.program == "gh":
        return words[:1] == ["run"] and not _LOOKING.isdisjoint(words[1:])
    if command.program not in _LOOKING_PROGRAMS:
        return False
    return not _LOOKING.isdisjoint(words[1:] if words and words[0] in _GROUPS else words[:1])


def _hinted(answer: Classified, hints: Mapping[str, object]) -> Classified:
    """The answer with the framework's metadata worked in.

    Source of the names: ToolAnnotations in the schema of the Model Context Protocol.
    """
    if hints.get("readOnlyHint") is True:
        answer = answer._replace(risk="read_only")
        return _renamed(answer, "read", "read_only", "The framework says that the tool only reads.")
    destructive, open_world = hints.get("destructiveHint"), hints.get("openWorldHint")
    if destructive is True:
        answer = answer._replace(risk="irreversible")
    if answer.tool_class != "other" or answer.neutral:
        return answer
    if hints.get("readOnlyHint") is False and (destructive is not None or hints.get("idempotentHint") is not None):
        return answer._replace(tool_class="write", why="The framework says that the tool changes something.")
    if open_world is True:
        return answer._replace(tool_class="network", why="The framework says that the tool reaches outside.")
    return answer

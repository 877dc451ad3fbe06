"""The subcommands and their options; what they do is imported only when one of them runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from otel_toolguard._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    name="otel-toolguard", no_args_is_help=True, add_completion=False, rich_markup_mode=None,
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="JSON for machines, and nothing else, on standard output.")]
Store = Annotated[str | None, typer.Option(metavar="URL", help="The shared store; else that of TOOLGUARD_STORE.")]


def run() -> None:
    """Runs the command line and exits."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # recordings hold what the terminal's encoding may not have
    app(prog_name="otel-toolguard")


def _finish(step: Callable[[], int]) -> NoReturn:
    """Runs a command's work and exits with its code; 2 for settings that cannot be honoured."""
    from otel_toolguard.cli.check import note
    from otel_toolguard.errors import SettingsError

    try:
        code = step()
        if sys.stdout is not None:
            sys.stdout.flush()
    except SettingsError as error:
        note(str(error))
        code = 2
    except BrokenPipeError:
        # The reader has seen enough. What is still buffered must not fail once more when the interpreter ends.
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        code = 0
    raise typer.Exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Loop and runaway guard for the tool calls of agents.

    Exit codes: 0 done, trips included; 1 bad input, or not done; 2 usage or settings; 3 trips, with --fail-on-trip.
    """


@app.command()
def replay(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Recordings: .jsonl, .jsonl.gz; - is stdin.")],
    profile: Annotated[str | None, typer.Option(metavar="NAME", help="Judge by this profile.")] = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE.toml", help="Judge by the chain of this file.")] = None,
    as_json: Json = False,
    calls: Annotated[bool, typer.Option("--calls", help="Also one line a call: signature, class, verdict.")] = False,
    fail_on_trip: Annotated[bool, typer.Option("--fail-on-trip", help="Exit with 3 if any circuit opened.")] = False,
) -> None:
    """Run recorded sessions through the rules: whom would they have stopped, where, and why?

    The mode is always "enforce". With --profile or --policy the environment is ignored; with neither, what
    TOOLGUARD_CONFIG and TOOLGUARD_PROFILE say counts (the profile "balanced" if they say nothing).

    Calls of one session follow each other by "i", also from one file to the next; an "i" of 0 in a later file begins
    another recording, with a line of its own.
    """
    if profile is not None and policy is not None:
        raise typer.BadParameter("give --profile or --policy, not both")
    from otel_toolguard.cli.replay import replay as work

    _finish(lambda: work(files, profile=profile, policy=policy, as_json=as_json, calls=calls, fail=fail_on_trip))


@app.command()
def inspect(
    tool: Annotated[str, typer.Option(metavar="NAME", help="The tool's name.")],
    args: Annotated[str | None, typer.Option(metavar="JSON", help="Its arguments, a JSON object.")] = None,
    result: Annotated[str | None, typer.Option(metavar="TEXT", help="A result, to see what is masked in it.")] = None,
    as_json: Json = False,
) -> None:
    """Show what the rules see of one call: class, risk, signature, masked result.

    Signatures are made under TOOLGUARD_SIGNATURE_KEY if that is set, so that they are those of your traces; the working
    directory of a shell is left out.
    """
    from otel_toolguard.cli.inspect import inspect as work

    _finish(lambda: work(tool, args, result, as_json=as_json))


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE.toml", help="The settings.")],
    as_json: Json = False,
) -> None:
    """Check a settings file, for CI: prints the effective chain; exits with 2 if it cannot be honoured.

    The environment (TOOLGUARD_*) is ignored: the file is judged by itself.
    """
    from otel_toolguard.cli.check import check as work

    _finish(lambda: work(file, as_json=as_json))


@app.command()
def explain(
    file: Annotated[str, typer.Argument(metavar="TRIP.json", help="What exc.to_dict() returned; - is stdin.")],
    as_json: Json = False,
) -> None:
    """Say why a run was stopped, and the smallest change of settings that would have let it go on.

    Reads a trip, or what holds trips: a line of "replay --json", the JSON of "demo --json", a session's report. The
    change is tried on a session rebuilt from the trip. The environment (TOOLGUARD_*) is ignored.
    """
    from otel_toolguard.cli.explain import explain as work

    _finish(lambda: work(file, as_json=as_json))


@app.command("export-case")
def export_case(
    target: Annotated[
        str, typer.Argument(metavar="TRIP.json|FILE#SESSION|ID", help="A trip, a recording, or an id in --log.")
    ],
    log: Annotated[
        str | None, typer.Option(metavar="TRIPLOG", help="Take the trip or session of that id from this trip log.")
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="The session of a recording.")] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file.")] = None,
    profile: Annotated[str | None, typer.Option(metavar="NAME", help="Judge by this profile.")] = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE.toml", help="Judge by the chain of this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a trapped case as a pytest file that replays it and asserts that it trips the same.

    Of a trip the calls are made up from the record, under the policy that a trip log names, else the most likely one.
    Of a recorded session they are its own up to the trip, without secrets; the rules are those of --profile or
    --policy, else what the environment says. Look the file through before you commit it.
    """
    if profile is not None and policy is not None:
        raise typer.BadParameter("give --profile or --policy, not both")
    from otel_toolguard.cli.export_case import export_case as work

    _finish(lambda: work(target, log=log, session=session, output=output, profile=profile, policy=policy, force=force,
                         as_json=as_json))  # fmt: skip


@app.command()
def doctor(
    modules: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODULE]...", help="Where your tools or agents are, as for python -m."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what the environment will do: export, providers, other instrumentations, policy, store, tools of a module.

    Asks the OTLP endpoints with an empty export, in both protocols, for 3 seconds at most. Each MODULE is imported, so
    its code runs. Secrets are never shown. Exits with 1 if something will not do what its setting says.
    """
    from otel_toolguard.cli.doctor import doctor as work

    _finish(lambda: work(modules or (), as_json=as_json))


@app.command()
def stop(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Its id.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is listed by session.audit().")],
    store: Store = None,
    create: Annotated[bool, typer.Option("--create", help="Also if the store has no such session yet.")] = False,
    as_json: Json = False,
) -> None:
    """Stop a session from outside: its agents end at their next model boundary, and none of their tools runs again.

    It holds for all of its runs, in every process that shares the store, until "reset". Exits with 1 if the store has
    no such session or cannot be used.
    """
    from otel_toolguard.cli.operate import stop as work

    _finish(lambda: work(session, url=store, reason=reason, create=create, as_json=as_json))


@app.command()
def reset(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Its id.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is listed by session.audit().")],
    store: Store = None,
    ceilings: Annotated[bool, typer.Option("--ceilings", help="Also what counts towards ceilings.")] = False,
    as_json: Json = False,
) -> None:
    """Let a stopped session go on: clears stop, rings, streaks and refusals of all of its runs.

    Which rules are ceilings is what TOOLGUARD_CONFIG and TOOLGUARD_PROFILE say here: set them as the agents have them.
    """
    from otel_toolguard.cli.operate import reset as work

    _finish(lambda: work(session, url=store, reason=reason, ceilings=ceilings, as_json=as_json))


@app.command()
def sessions(
    store: Store = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="How many are shown.")] = 50,
    as_json: Json = False,
) -> None:
    """List the sessions of a store, the newest first. Looking changes nothing: none of them lives longer by it."""
    from otel_toolguard.cli.operate import sessions as work

    _finish(lambda: work(url=store, limit=limit, as_json=as_json))


@app.command()
def hook(
    on_error: Annotated[
        str, typer.Option("--on-error", metavar="allow|deny", help="What becomes of a call that cannot be judged.")
    ] = "allow",
    show: Annotated[bool, typer.Option("--print-config", help="Print the settings that install the hook.")] = False,
    agent: Annotated[
        str, typer.Option("--for", metavar="claude|codex|gemini", help="With --print-config: for which agent.")
    ] = "claude",
) -> None:
    """Guard a coding agent from its hooks: Claude Code, Codex, Gemini CLI. JSON on standard input and output.

    Sessions are kept where TOOLGUARD_STORE says, else in the usual SQLite file. The exit code is 0 whatever happens.
    """
    from otel_toolguard.cli.hook import AGENTS, ON_ERROR, print_config
    from otel_toolguard.cli.hook import hook as work

    if on_error not in ON_ERROR or agent not in AGENTS:
        raise typer.BadParameter(f"--on-error takes {' or '.join(ON_ERROR)}, --for takes {', '.join(AGENTS)}")
    _finish(lambda: print_config(agent, on_error) if show else work(on_error))


@app.command()
def demo(
    limit: Annotated[int | None, typer.Option(metavar="N", help="Laps that a repeated cycle may make.")] = None,
    period: Annotated[int | None, typer.Option(metavar="P", help="Calls in one lap of the cycle.")] = None,
    ceiling: Annotated[int | None, typer.Option(metavar="C", help="Calls that the run may make.")] = None,
    as_json: Json = False,
) -> None:
    """Watch a real agent work, loop, and pass its ceiling."""
    from otel_toolguard.cli.demo import demo as work

    _finish(lambda: work(limit, period, ceiling, as_json))


@app.command(name="mcp-proxy", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def mcp_proxy(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="Starts the server.")] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="The server's address, instead of a command.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Serve clients by HTTP here.")] = None,
    session: Annotated[str | None, typer.Option(metavar="NAME", help="The session of all connections.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help='"Name: value" for URL; $NAME is filled in.')
    ] = None,
    carry: Annotated[bool, typer.Option("--trace/--no-trace", help="Put trace context into the calls.")] = True,
    structured: Annotated[
        bool, typer.Option("--structured/--text-only", help="Refusals have structured content too.")
    ] = True,
    new_run_after: Annotated[float | None, typer.Option(metavar="SECONDS", help="A pause that begins a run.")] = None,
) -> None:
    """Guard an MCP server for any client: put "otel-toolguard mcp-proxy --" before the server's command.

    Everything passes to the byte but the tool calls that the rules refuse: they get an ordinary error result that says
    why. Settings are those of the environment (TOOLGUARD_*). The server's exit code is that of the proxy.
    """
    from otel_toolguard.cli.mcp_proxy import leave
    from otel_toolguard.cli.mcp_proxy import mcp_proxy as work

    def step() -> int:
        leave(
            work(command or (), url=url, listen=listen, session=session, headers=header or (), carry=carry,
                 structured=structured, pause=new_run_after)
        )  # fmt: skip

    _finish(step)

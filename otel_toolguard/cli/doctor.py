"""``otel-toolguard doctor``: says what the environment will do, before an agent finds out."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import textwrap
from collections import Counter
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from otel_toolguard._version import __version__
from otel_toolguard.cli.check import note
from otel_toolguard.cli.doctor_beside import beside_findings
from otel_toolguard.cli.doctor_export import export_findings, wants_otlp
from otel_toolguard.cli.doctor_finding import Finding, Section
from otel_toolguard.cli.doctor_module import imported, left_running, module_findings, names_of
from otel_toolguard.cli.doctor_policy import policy_findings
from otel_toolguard.cli.doctor_providers import provider_findings, zero_code_exports
from otel_toolguard.cli.doctor_sdk import sdk_findings
from otel_toolguard.cli.doctor_store import store_findings
from otel_toolguard.cli.doctor_streams import Running, apart, opened, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_toolguard.cli.doctor_finding import Level

_NAME = 21  # columns
_NARROWEST, _WIDEST = 60, 100


def doctor(modules: Sequence[str], *, as_json: bool) -> int:
    """Prints what was found; returns the exit code, 1 if something will not do what its setting says.

    Args:
        modules: Modules in which the tools are looked at.
        as_json: True for one JSON object.

    Raises:
        SettingsError: What was given is no name of a module.
    """
    names = names_of(modules)
    there = opened()
    running = Running()
    with apart():
        sections = _found(names, running)
    levels = Counter(finding.level for section in sections for finding in section.findings)
    text = _json(sections, levels) if as_json else "".join(f"{line}\n" for line in _lines(sections, levels))
    if not there:
        note("standard output is closed: the report cannot be written")
    done = written(text) and there
    return running.leave(1 if levels["fail"] or not done else 0)


def _found(names: Sequence[str], running: Running) -> list[Section]:
    modules, faults = imported(names)  # first of all: what it sets up is what the rest is about
    with _quiet():
        sections = _sections()
        policy, judged = policy_findings(os.environ)
        sections.append(Section("policy", judged))
        sections.append(Section("store", store_findings(os.environ, policy)))
        if names:
            faults += left_running(running.names())
            sections.append(Section("module", [*faults, *(module_findings(modules, policy) if modules else ())]))
        elif policy is not None and policy.tools:
            judged.append(_unasked(len(policy.tools)))
    return sections


def _sections() -> list[Section]:
    """What is about telemetry."""
    environment = os.environ
    exported = export_findings(environment, instrumented=zero_code_exports(environment))
    exported += sdk_findings(environment)
    return [
        Section("export", exported),
        Section("providers", provider_findings(environment, wants_otlp(environment))),
        Section("other instrumentations", beside_findings(environment)),
    ]


def _unasked(globs: int) -> Finding:
    return Finding("note", "globs", f"{globs} of tools; otel-toolguard doctor MODULE says which of them match nothing")


@contextmanager
def _quiet() -> Iterator[None]:
    """Loggers say nothing meanwhile: one of OpenTelemetry prints headers that it cannot read, secrets and all."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _json(sections: list[Section], levels: Counter[Level]) -> str:
    answer = {
        "ok": not levels["fail"],
        "version": __version__,
        "python": platform.python_version(),
        "counts": {level: levels[level] for level in ("ok", "note", "warn", "fail")},
        "sections": {section.title: [finding.to_dict() for finding in section.findings] for section in sections},
    }
    return json.dumps(answer, default=str) + "\n"


# ------------------------------------------------------------------------------------------------ the page


def _lines(sections: list[Section], levels: Counter[Level]) -> Iterator[str]:
    width = min(max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST), _WIDEST)
    yield f"otel-toolguard {__version__}, Python {platform.python_version()}"
    for section in sections:
        yield ""
        yield section.title
        for finding in _joined(section.findings):
            yield from _shown(finding, width)
    yield ""
    yield _sum(levels)


def _joined(findings: list[Finding]) -> Iterator[Finding]:
    """What is so of several in a row is said once, under all of their names."""
    for (level, text, advice), same in groupby(findings, key=lambda each: (each.level, each.text, each.advice)):
        yield Finding(level, ", ".join(dict.fromkeys(finding.name for finding in same)), text, advice)


def _shown(finding: Finding, width: int) -> Iterator[str]:
    """The word, the name, what is so; below it what to do."""
    head = f"  {finding.level:<4}  {finding.name:<{_NAME}}"
    margin = " " * len(f"  {finding.level:<4}  {'':<{_NAME}} ")
    if len(finding.name) > _NAME:
        yield head
        head = " " * (len(margin) - 1)
    yield from _wrapped(finding.text, f"{head} ", margin, width)
    if finding.advice:
        yield from _wrapped(finding.advice, f"{margin}-> ", f"{margin}   ", width)


def _wrapped(text: str, first: str, rest: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _sum(levels: Counter[Level]) -> str:
    if levels["fail"]:
        one = levels["fail"] == 1
        return f"{levels['fail']} thing{'' if one else 's'} will not do what {'its' if one else 'their'} setting says."
    return "Nothing is wrong." if not levels["warn"] else "Nothing fails; look at the warnings."

"""Which other instrumentations are installed, and how a call still is one tool span beside each of them."""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

from otel_toolguard.cli.doctor_finding import Finding, one_line
from otel_toolguard.cli.doctor_providers import installed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
_OURS = "toolguard_"
_AGENTS = (
    "agno", "autogen", "bedrock", "crewai", "dspy", "haystack", "langchain", "llama-index", "llamaindex", "mcp",
    "openai-agents", "pydantic-ai", "smolagents", "strands",
)  # fmt: skip
_ENRICHED = "its tool span is kept and gets our attributes: no second one"
_REMARKS = {
    "OpenTelemetry GenAI": "; it records the duration, we do not",
    "OpenInference langchain": "; it does not make its spans current, so we do while the tool runs",
}
_WITHOUT_ENTRY = {  # distributions that trace tools and have no entry point
    "logfire": f"{_ENRICHED}; let its scrubbing keep toolguard.session.id, see docs/telemetry.md",
    "traceloop-sdk": f"switches OpenLLMetry on in code: {_ENRICHED}",
    "pydantic-ai-slim": f"traces its own tools where it is told to: {_ENRICHED}",
}


class Other(NamedTuple):
    """An instrumentation that ``opentelemetry-instrument`` would find.

    Attributes:
        name: Of its entry point, by which it is disabled.
        distribution: That it came with.
    """

    name: str
    distribution: str

    @property
    def family(self) -> str | None:
        """Whose it is, if it is one that opens spans for tools."""
        if not any(agent in self.distribution for agent in _AGENTS):
            return None
        if self.distribution.startswith("openinference-"):
            return "OpenInference"
        if "-genai-" in self.distribution or self.distribution.endswith("-v2"):
            return "OpenTelemetry GenAI"
        return "OpenLLMetry" if self.distribution.startswith("opentelemetry-instrumentation-") else None

    @property
    def framework(self) -> str:
        """What it traces."""
        return next((agent for agent in _AGENTS if agent in self.distribution), self.name)


def beside_findings(environment: Mapping[str, str], others: list[Other] | None = None) -> list[Finding]:
    """What is installed beside the guard.

    Args:
        environment: The variables.
        others: What is installed; None to look.
    """
    found = sorted(set(_installed() if others is None else others))
    disabled = {name.strip() for name in environment.get(DISABLED, "").split(",")} - {""}
    off = disabled.__contains__ if "*" not in disabled else lambda _name: True
    ours = [other for other in found if other.name.startswith(_OURS)]
    tracing = [other for other in found if other.family and other not in ours]
    findings = [_of_ours(other, off(other.name)) for other in ours]
    findings += [_of_other(other, off(other.name)) for other in tracing]
    findings += _doubled([other for other in tracing if not off(other.name)])
    if others is None:
        findings += [Finding("ok", name, text) for name, text in _WITHOUT_ENTRY.items() if installed(name)]
    rest = sorted({other.name for other in found if other not in ours and other not in tracing})
    if rest:
        findings.append(Finding("ok", "others", f"{one_line(', '.join(rest))}: no spans of tools", "", {"names": rest}))
    findings += _unknown(disabled, {other.name for other in found})
    return findings or [Finding("ok", "others", "none installed: each guarded call has one span of ours")]


def _installed() -> Iterator[Other]:
    for entry in entry_points(group="opentelemetry_instrumentor"):
        yield Other(entry.name, (entry.dist.name if entry.dist else "").lower().replace("_", "-"))


def _of_ours(other: Other, off: bool) -> Finding:
    data = {"distribution": other.distribution, "enabled": not off}
    if off:
        text = f"{other.distribution}: zero-code is off by {DISABLED}; what is guarded in code stays guarded"
        return Finding("note", other.name, text, "", data)
    text = f"{other.distribution}: opentelemetry-instrument would guard the framework; what code guards is counted once"
    return Finding("ok", other.name, text, "", data)


def _of_other(other: Other, off: bool) -> Finding:
    data = {"distribution": other.distribution, "family": other.family, "enabled": not off}
    if off:
        return Finding(
            "note", other.name, f"{other.distribution}: off by {DISABLED}; our own span is the one", "", data
        )
    remark = _REMARKS.get(other.family or "") or _REMARKS.get(f"{other.family} {other.framework}") or ""
    return Finding("ok", other.name, f"{other.distribution} ({other.family}): {_ENRICHED}{remark}", "", data)


def _doubled(tracing: list[Other]) -> Iterator[Finding]:
    """Two others on one framework open two spans a call, whatever the guard does."""
    by_framework: dict[str, list[Other]] = defaultdict(list)
    for other in tracing:
        by_framework[other.framework].append(other)
    for framework, several in by_framework.items():
        if len(several) > 1:
            names = " and ".join(other.distribution for other in several)
            kept = "one name disables all of them: uninstall all but one, or switch one on in code"
            apart = f"keep one: {DISABLED} takes {' or '.join(other.name for other in several)}"
            advice = kept if len({other.name for other in several}) == 1 else apart
            text = f"{names} would each trace {framework}: so many tool spans a call, of which one has our attributes"
            yield Finding("warn", framework, text, advice)


def _unknown(disabled: set[str], names: set[str]) -> Iterator[Finding]:
    for name in sorted(disabled - names - {"*"}):
        text = f"{DISABLED} names {one_line(name, 60)}, which is not installed"
        yield Finding("warn", "disabled", text, f"installed are {', '.join(sorted(names)) or 'none'}")

"""Where traces, metrics and logs would go, and whether anybody takes them there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_toolguard.cli.doctor_finding import Finding, one_line, shown_url
from otel_toolguard.cli.doctor_providers import OTLP
from otel_toolguard.cli.doctor_reach import SECONDS, ask, ask_all
from otel_toolguard.cli.doctor_tls import tls_findings
from otel_toolguard.cli.doctor_variables import DEFAULT_TIMEOUT, DEFAULTS, GRPC, HTTP, SIGNALS, export_of
from otel_toolguard.errors import SettingsError
from otel_toolguard.session import default_telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from otel_toolguard.cli.doctor_answer import Answer
    from otel_toolguard.cli.doctor_finding import Level
    from otel_toolguard.cli.doctor_variables import Export

_OTHER = {GRPC: HTTP, HTTP: GRPC}
_LENDING = "OTEL_PYTHON_EXPORTER_OTLP_"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_WORD = {GRPC: "gRPC", HTTP: "OTLP over HTTP"}
_PORT = {GRPC: 4317, HTTP: 4318}
_OF_OTLP = ("denied", "no_path", "busy", "empty", "refused", "moved", "proxy", "files")  # not by the wrong protocol
_SAMPLERS = ("always_on", "always_off", "traceidratio")


class _Asked(NamedTuple):
    """A signal, and how its endpoint answered: in the protocol that is set, and in the other one."""

    export: Export
    answer: Answer
    otherwise: Answer


def export_findings(environment: Mapping[str, str], *, instrumented: bool) -> list[Finding]:
    """What becomes of each signal.

    Args:
        environment: The variables.
        instrumented: Whether ``opentelemetry-instrument`` would export by OTLP without being told.
    """
    exports = [export_of(signal, environment) for signal in SIGNALS]
    asked = _ask([export for export in exports if not export.off and export.protocol in DEFAULTS], environment)
    findings = list(_switches(environment))
    for export in exports:
        if export.off:
            findings.append(_elsewhere(export))
        elif export.signal in asked:
            findings.append(_told(asked[export.signal], instrumented=instrumented))
    trusted = {export.signal: asked[export.signal].answer.trusts for export in exports if export.signal in asked}
    findings += _once(_values(exports, trusted))
    return findings


def _ask(exports: list[Export], environment: Mapping[str, str]) -> dict[str, _Asked]:
    """Each in both protocols, all at the same time."""
    questions: dict[Hashable, Callable[[], Answer]] = {
        (export.signal, protocol): partial(ask, _in(export, protocol, environment))
        for export in exports
        for protocol in (GRPC, HTTP)
    }
    answers = ask_all(questions)
    return {
        export.signal: _Asked(
            export, answers[export.signal, export.protocol], answers[export.signal, _OTHER[export.protocol]]
        )
        for export in exports
    }


def _in(export: Export, protocol: str, environment: Mapping[str, str]) -> Export:
    """The same place, spoken to in a protocol; the default place of that protocol, if none is named."""
    if protocol == export.protocol:
        return export
    other = export_of(export.signal, environment, protocol)
    if protocol == GRPC or export.source is None:
        return other
    scheme = "https" if export.secure else "http"
    return other._replace(endpoint=f"{scheme}://{export.target}/v1/{export.signal}")


# ------------------------------------------------------------------------------------------------ in words


def _told(asked: _Asked, *, instrumented: bool) -> Finding:
    export, answer, otherwise = asked
    place = export.source or "default"
    shown = shown_url(export.endpoint)
    if export.protocol == HTTP and shown.endswith(f"/v1/{export.signal}"):
        shown = f"{shown.removesuffix(export.signal)}…"  # so that what holds for all signals is one text
    text = f"{export.protocol} to {shown} ({place}): {answer.text}"
    if otherwise.kind == "ok":
        elsewhere = "" if export.source else f", at {DEFAULTS[_OTHER[export.protocol]]}"
        text += f"; {_WORD[_OTHER[export.protocol]]} answers{elsewhere}"
    data = {
        "exporters": _names(export), "protocol": one_line(export.protocol, 40), "endpoint": shown_url(export.endpoint),
        "source": export.source, "answer": answer.kind, "other_protocol": otherwise.kind,
        "headers": sorted(export.headers), "timeout_s": export.timeout,
    }  # fmt: skip
    level, advice = _judged(asked, wanted=export.named or instrumented)
    if level == "fail" and not export.named:
        level = "warn"  # a default of zero-code, which the program perhaps does not run under
    return Finding(level, export.signal, text, advice, data)


def _judged(asked: _Asked, *, wanted: bool) -> tuple[Level, str]:
    export, answer, otherwise = asked
    if answer.kind == "ok":
        return "ok", ""
    if not wanted:
        return "note", "no export is asked for; OTEL_EXPORTER_OTLP_ENDPOINT and _PROTOCOL would ask for one"
    if answer.kind == "unasked":
        return "fail", OTLP
    if otherwise.kind in ("ok", "denied") and answer.kind not in _OF_OTLP:
        return "fail", _the_other(export)
    if answer.kind == "no_path" and export.signal != SIGNALS[0]:
        return "warn", (
            f"set OTEL_{export.signal.upper()}_EXPORTER=none, or OTEL_EXPORTER_OTLP_{export.signal.upper()}_ENDPOINT "
            "to a place that takes them"
        )
    return "warn" if answer.kind in ("busy", "empty") else "fail", _ADVICE[answer.kind](export)


def _the_other(export: Export) -> str:
    """What to do where the port speaks the other protocol."""
    other = _OTHER[export.protocol]
    if export.source is None:
        return f"set OTEL_EXPORTER_OTLP_PROTOCOL={other}"
    own = f"OTEL_EXPORTER_OTLP_{export.signal.upper()}_"
    prefix = own if export.source.startswith(own) else "OTEL_EXPORTER_OTLP_"
    path = f", with /v1/{export.signal} at the end of the address" if prefix == own and other == HTTP else ""
    return (
        f"that port speaks {_WORD[other]}: set {prefix}PROTOCOL={other}{path}; or name the port for "
        f"{_WORD[export.protocol]}, usually {_PORT[export.protocol]}"
    )


def _advice_tls(export: Export) -> str:
    if export.source and "://" not in export.endpoint:
        return f"without a scheme gRPC goes under TLS: write http://{shown_url(export.target)} if it is plain"
    return "write http:// if that port speaks no TLS; else look at its certificate and the client's"


def _advice_no_path(export: Export) -> str:
    if export.protocol == HTTP and not export.endpoint.rstrip("/").endswith(f"/v1/{export.signal}"):
        return f"this address is used as it is: end it in /v1/{export.signal}"
    return "look at the address, in the documentation of the back end"


def _advice_away(export: Export) -> str:
    if export.source is None:
        return "start a receiver there, or set OTEL_EXPORTER_OTLP_ENDPOINT"
    return f"start it, or correct {export.source}"


def _advice_silent(export: Export) -> str:
    if export.timeout < SECONDS:
        return "give it more time with OTEL_EXPORTER_OTLP_TIMEOUT, in seconds"
    return "something may be in the way: a firewall, a proxy, TLS on one side only"


_ADVICE: dict[str, Callable[[Export], str]] = {
    "away": _advice_away,
    "silent": _advice_silent,
    "untrusted": lambda _: "set OTEL_EXPORTER_OTLP_CERTIFICATE to the file of the authority that signed it",
    "tls": _advice_tls,
    "other": lambda _: "is it an OTLP receiver? Look at host and port",
    "denied": lambda export: (
        "look at the values in OTEL_EXPORTER_OTLP_HEADERS"
        if export.headers
        else "set OTEL_EXPORTER_OTLP_HEADERS to what the back end asks for"
    ),
    "no_path": _advice_no_path,
    "proxy": lambda _: "look at ALL_PROXY, HTTP_PROXY and HTTPS_PROXY; NO_PROXY names hosts that need none",
    "moved": lambda export: f"write the address to which it redirects into {export.source or _ENDPOINT}",
    "empty": lambda _: (
        "perhaps it takes what is not empty: send it a span, and look whether that arrives; "
        "or it speaks TLS, and http:// is to be https://"
    ),
    "refused": lambda _: "correct the variable that it names",
    "files": lambda _: "correct the variable that names it",
    "busy": lambda _: "exporters try again for the time of their timeout; ask once more later",
    "odd": lambda export: f"look at {export.source or 'the address'}",
}


def _elsewhere(export: Export) -> Finding:
    names = ", ".join(one_line(name, 40) or "nothing" for name in export.exporters or ())
    text = "not exported" if names == "none" else f"to {names}, not by OTLP"
    variable = f"OTEL_{export.signal.upper()}_EXPORTER"
    return Finding("note", export.signal, f"{text} ({variable})", "", {"exporters": _names(export)})


def _names(export: Export) -> list[str] | None:
    return None if export.exporters is None else [one_line(name, 40) for name in export.exporters]


# ------------------------------------------------------------------------------------------------ values


def _switches(environment: Mapping[str, str]) -> Iterator[Finding]:
    """What makes spans few or none, whatever the endpoint."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        yield Finding("warn", "sdk", "OTEL_SDK_DISABLED is true: nothing is traced", "unset it to have traces")
    try:
        telemetry = default_telemetry("enforce")
    except SettingsError as error:
        yield Finding("fail", "telemetry", one_line(error), "correct it; until then each Session raises this error")
    else:
        if telemetry is None:
            yield Finding("warn", "telemetry", "TOOLGUARD_TELEMETRY is off: guarded calls tell nothing", "unset it")
    if environment.get("OTEL_CONFIG_FILE"):
        text = "OTEL_CONFIG_FILE is set: the SDK reads that file, which is not looked at here, and no other variable"
        yield Finding("warn", "sdk", text, "unset it, if the variables are meant to count")
    lending = [name for name in sorted(environment) if name.startswith(_LENDING) and name.endswith("_PROVIDER")]
    if lending:
        text = f"{', '.join(lending)}: asked is without its credentials, so that the answer may be another"
        yield Finding("note", "credentials", text)
    sampler = environment.get("OTEL_TRACES_SAMPLER", "").lower()
    if sampler:
        yield _sampler(sampler, environment.get("OTEL_TRACES_SAMPLER_ARG"))


def _sampler(name: str, argument: str | None) -> Finding:
    base = name.removeprefix("parentbased_")
    shown = one_line(name, 40)
    if base not in _SAMPLERS:
        return Finding("note", "sampler", f"{shown} (OTEL_TRACES_SAMPLER), none of the SDK's own")
    if base == "always_off":
        return Finding("warn", "sampler", f"{shown} (OTEL_TRACES_SAMPLER): no trace begins here", "unset it")
    if base != "traceidratio":
        return Finding("ok", "sampler", f"{shown} (OTEL_TRACES_SAMPLER)")
    try:
        rate = float(argument or "")
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        said = "no rate is set" if argument is None else f"{one_line(argument, 40)} is no rate from 0 to 1"
        return Finding("fail", "sampler", f"{shown}: {said}", "set OTEL_TRACES_SAMPLER_ARG, such as 0.1")
    keeps = f"{shown} keeps {rate:.4g} of the traces (OTEL_TRACES_SAMPLER)"
    if rate == 1:
        return Finding("ok", "sampler", keeps)
    return Finding("note", "sampler", f"{keeps}; a trip in the others has no trace", "sample behind the collector")


def _values(exports: list[Export], trusted: Mapping[Any, str | None]) -> Iterator[Finding]:
    for export in exports:
        if export.off:
            continue
        for wrong in export.wrong:
            yield Finding("fail", "value", f"{wrong.variable}: {wrong.text}", wrong.advice)
        if export.headers:
            yield Finding("ok", "headers", f"{', '.join(sorted(export.headers))} (the values are not shown)")
        if export.timeout != DEFAULT_TIMEOUT and not export.wrong:
            yield Finding("ok", "timeout", f"{export.timeout:g} s")
        yield from tls_findings(export, trusted.get(export.signal))


def _once(findings: Iterator[Finding]) -> list[Finding]:
    """What holds for several signals is said once."""
    return list({(finding.name, finding.text): finding for finding in findings}.values())


def wants_otlp(environment: Mapping[str, str]) -> dict[str, Any]:
    """The protocol of each signal for which an OTLP export is asked for."""
    exports = (export_of(signal, environment) for signal in SIGNALS)
    return {export.signal: export.protocol for export in exports if export.named and not export.off}

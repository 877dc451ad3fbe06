"""What the standard ``OTEL_*`` variables come to for one signal, read as the exporters of Python's SDK read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from otel_toolguard.cli.doctor_finding import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Signal = Literal["traces", "metrics", "logs"]
SIGNALS: tuple[Signal, ...] = ("traces", "metrics", "logs")
GRPC, HTTP = "grpc", "http/protobuf"
DEFAULTS = {GRPC: "http://localhost:4317", HTTP: "http://localhost:4318"}
DEFAULT_TIMEOUT = 10.0
_PREFIX = "OTEL_EXPORTER_OTLP_"
_NAMED = {"otlp_proto_grpc": GRPC, "otlp_proto_http": HTTP}
_OTLP = ("otlp", *_NAMED)
_SHORTEST, _LONGEST = 0.1, 300.0  # seconds; what is less is hardly enough, what is more was meant as milliseconds
_FROM_SECONDS = "write seconds, such as 10"
_TRUE = "true"
_TLS = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")


class Wrong(NamedTuple):
    """A value that cannot be honoured: the variable, what is wrong with it, and what to do."""

    variable: str
    text: str
    advice: str


class Export(NamedTuple):
    """Where a signal goes.

    Attributes:
        signal: Which.
        exporters: Names in ``OTEL_{SIGNAL}_EXPORTER``; None where it is not set.
        protocol: What the OTLP exporter speaks; any other word is one that no exporter has.
        endpoint: What it is given: over HTTP the whole address.
        source: The variable that names it, None for the default.
        target: ``host:port`` that gRPC is spoken to.
        secure: Whether that is under TLS.
        headers: By name; the values are secrets.
        timeout: Seconds.
        compression: As it is named; empty for none.
        certificate: File of the authorities that are trusted, None for the usual ones.
        client: Files of the client's certificate and its key.
        wrong: Values that cannot be honoured.
    """

    signal: Signal
    exporters: tuple[str, ...] | None
    protocol: str
    endpoint: str
    source: str | None
    target: str
    secure: bool
    headers: Mapping[str, str]
    timeout: float
    compression: str
    certificate: str | None
    client: tuple[str | None, str | None]
    wrong: tuple[Wrong, ...]

    @property
    def named(self) -> bool:
        """Whether somebody asked for this export."""
        return self.source is not None or self.by_otlp

    @property
    def under_tls(self) -> bool:
        """Whether what is sent goes under TLS."""
        return self.secure if self.protocol == GRPC else self.endpoint.lower().startswith("https")

    @property
    def by_otlp(self) -> bool:
        """Whether an OTLP exporter is named for the signal."""
        return any(name in _OTLP for name in self.exporters or ())

    @property
    def off(self) -> bool:
        """Whether nothing of the signal leaves by OTLP, because other exporters or none are named."""
        return self.exporters is not None and not self.by_otlp


def export_of(signal: Signal, environment: Mapping[str, str], protocol: str | None = None) -> Export:
    """What the variables say for a signal.

    Args:
        signal: Which.
        environment: The variables.
        protocol: Asks as if this protocol were set.
    """
    of_signal = Variables(environment, signal)
    exporters = of_signal.exporters()
    named = next((_NAMED[name] for name in exporters or () if name in _NAMED), None)
    spoken = protocol or named or of_signal.get("PROTOCOL").strip() or GRPC
    source = of_signal.source("ENDPOINT")
    given = environment[source] if source else DEFAULTS.get(spoken, DEFAULTS[GRPC])
    endpoint = given
    if spoken != GRPC and source != of_signal.own("ENDPOINT"):
        endpoint = f"{given.removesuffix('/')}/v1/{signal}"
    scheme, netloc = _parts(given)
    timeout, late = of_signal.timeout()
    packed = of_signal.get("COMPRESSION").strip().lower()
    certificate, client = of_signal.tls_files(spoken)
    return Export(
        signal, exporters, spoken, endpoint, source, netloc or given, of_signal.secure(scheme),
        headers_of(of_signal.get("HEADERS")), timeout, packed, certificate, client,
        (*late, *of_signal.unknown_words(spoken), *(of_signal.refused_by_grpc(netloc) if spoken == GRPC else ())),
    )  # fmt: skip


class Variables:
    """The variables that speak of one signal: its own before the general ones; an empty one says nothing."""

    def __init__(self, environment: Mapping[str, str], signal: Signal) -> None:
        self._environment = environment
        self._signal = signal.upper()

    def own(self, name: str) -> str:
        """The variable for this signal alone."""
        return f"{_PREFIX}{self._signal}_{name}"

    def source(self, name: str) -> str | None:
        """The variable that speaks; None if none is set."""
        return next((v for v in (self.own(name), _PREFIX + name) if self._environment.get(v)), None)

    def get(self, name: str) -> str:
        """Its value, empty if none is set."""
        source = self.source(name)
        return self._environment[source] if source else ""

    def exporters(self) -> tuple[str, ...] | None:
        """The names of the exporters of the signal; None if nothing is said."""
        said = self._environment.get(f"OTEL_{self._signal}_EXPORTER")
        if not said:
            return None
        return ("none",) if said.strip().lower() == "none" else tuple(name.strip() for name in said.split(","))

    def secure(self, scheme: str) -> bool:
        """Whether gRPC goes under TLS: without a scheme it does."""
        own = self._environment.get(self.own("INSECURE"))
        if scheme == "https":
            return True
        said = own if own is not None else self._environment.get(f"{_PREFIX}INSECURE")
        return scheme != "http" if said is None else said.lower() != _TRUE

    def timeout(self) -> tuple[float, tuple[Wrong, ...]]:
        """Seconds, and what is wrong with them."""
        source = self.source("TIMEOUT")
        if source is None:
            return DEFAULT_TIMEOUT, ()
        said = self._environment[source]
        try:
            seconds = float(said)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            text = f"{one_line(said, 40)} is no number of seconds; exporters refuse it or take {DEFAULT_TIMEOUT:g} s"
            return DEFAULT_TIMEOUT, (Wrong(source, text, _FROM_SECONDS),)
        if seconds > _LONGEST:
            text = f"{said} is read as seconds by Python's exporters, not as milliseconds"
            return seconds, (Wrong(source, text, _FROM_SECONDS),)
        if seconds < _SHORTEST:
            return seconds, (Wrong(source, f"{said} s is too short for most exports", _FROM_SECONDS),)
        return seconds, ()

    def tls_files(self, protocol: str) -> tuple[str | None, tuple[str | None, str | None]]:
        """The authorities, and the client's certificate and key.

        Over gRPC they come from the variables of one level, and the client's count only beside authorities.
        """
        if protocol != GRPC:
            return self.get("CERTIFICATE") or None, (
                self.get("CLIENT_CERTIFICATE") or None,
                self.get("CLIENT_KEY") or None,
            )
        level = self.own if self._environment.get(self.own("CERTIFICATE")) is not None else _PREFIX.__add__
        trusted, *client = (self._environment.get(level(name)) or None for name in _TLS)
        return trusted, (client[0], client[1]) if trusted else (None, None)

    def refused_by_grpc(self, netloc: str) -> Iterator[Wrong]:
        """What the exporter for HTTP takes and that for gRPC does not: values that are empty, users in addresses."""
        for name in ("TIMEOUT", "COMPRESSION"):
            first = next((v for v in (self.own(name), _PREFIX + name) if v in self._environment), None)
            if first and not self._environment[first]:
                yield Wrong(first, "is set and empty, which the exporter for gRPC refuses", "unset it")
        if self.source("ENDPOINT") is None and self._environment.get(f"{_PREFIX}ENDPOINT") == "":
            yield Wrong(
                f"{_PREFIX}ENDPOINT", "is set and empty, which the exporter for gRPC takes for a place", "unset it"
            )
        if "@" in netloc:
            text = "gRPC takes the user and password in this address for a part of the host's name"
            yield Wrong(self.source("ENDPOINT") or "", text, "put credentials into OTEL_EXPORTER_OTLP_HEADERS")

    def unknown_words(self, protocol: str) -> Iterator[Wrong]:
        """Words that no exporter knows, and entries that are no headers."""
        if protocol not in DEFAULTS:
            source = self.source("PROTOCOL") or "protocol"
            yield Wrong(source, f"{one_line(protocol, 40)} is no protocol of Python's exporters", f"{HTTP} or {GRPC}")
        compression = self.get("COMPRESSION").strip().lower()
        known = ("gzip",) if protocol == GRPC else ("none", "gzip", "deflate")
        if compression and compression not in known:
            source = self.source("COMPRESSION") or ""
            text = f"{one_line(compression, 40)} is not known to the exporter for {one_line(protocol, 40)}"
            yield Wrong(source, text, f"{' or '.join(known)}, or leave it out")
        bad = sum(1 for entry in _entries(self.get("HEADERS")) if not _name(entry))
        if bad:
            text = f"entries without the form name=value: {bad}; exporters leave them out, and print them in a warning"
            yield Wrong(self.source("HEADERS") or "", text, "write name=value,name=value with the values URL-encoded")


def headers_of(text: str) -> dict[str, str]:
    """Header values by name, as they are sent."""
    pairs = ((_name(entry), entry.partition("=")[2]) for entry in _entries(text))
    return {name: unquote(value).strip() for name, value in pairs if name}


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _name(entry: str) -> str:
    """The name of a header; empty if the entry has none that can be sent."""
    name = unquote(entry.partition("=")[0]).strip().lower() if "=" in entry else ""
    return name if name.isascii() and all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name) else ""


def _parts(endpoint: str) -> tuple[str, str]:
    """Scheme, and host with port; both empty where the address cannot be read."""
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        return "", ""
    return parts.scheme, parts.netloc

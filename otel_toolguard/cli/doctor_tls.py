"""Whether the files of TLS settings can be used, and which authorities really are trusted."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

from otel_toolguard.cli.doctor_finding import Finding, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_toolguard.cli.doctor_variables import Export


def tls_findings(export: Export, used: str | None) -> Iterator[Finding]:
    """What is so of the files.

    Args:
        export: Where it goes.
        used: The file of authorities that really was used over HTTP; None if that is not known.
    """
    certificate, client = export.certificate, export.client[0]
    if not export.under_tls:
        if certificate or client:
            text = "the files of TLS settings are not used: the address is plain http://"
            yield Finding("note", "certificate", text)
        return
    if certificate and used and used != certificate:
        text = f"trusts {one_line(used)}, of REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE, instead of {one_line(certificate)}"
        advice = "unset that one: over HTTP it speaks before OTEL_EXPORTER_OTLP_CERTIFICATE"
        yield Finding("warn", "certificate", text, advice)
    faults = list(faults_of(used or certificate, export.client))
    for path, fault in faults:
        advice = "correct the OTEL_EXPORTER_OTLP_*CERTIFICATE, *KEY, or *_CA_BUNDLE that names it"
        yield Finding("fail", "tls file", f"{one_line(path)} of the TLS settings {fault}", advice)
    if certificate and not faults and used in (None, certificate):
        yield Finding("ok", "certificate", f"trusts {one_line(certificate)}")


def faults_of(authorities: str | None, client: tuple[str | None, str | None]) -> Iterator[tuple[str, str]]:
    """Files that cannot be used, and why.

    Args:
        authorities: Those that are trusted.
        client: The client's certificate and key.
    """
    certificate, key = client
    named = [path for path in (authorities, certificate, key) if path]
    endless = [path for path in named if is_endless(path)]
    if endless:
        yield from ((path, "is no plain file") for path in endless)
        return
    if authorities and not os.path.isdir(authorities):  # noqa: PTH112  (over HTTP a folder of certificates will do)
        try:
            ssl.create_default_context(cafile=authorities)
        except (OSError, ValueError) as fault:
            yield authorities, _unusable(fault)
    if certificate:
        try:
            ssl.create_default_context().load_cert_chain(certificate, key, password=lambda: "")  # asks nobody
        except (OSError, ValueError) as fault:
            yield " and ".join(path for path in (certificate, key) if path), _unusable(fault)


def is_endless(path: str) -> bool:
    """Whether reading it may never end: it is there, and a pipe or a device."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)  # noqa: PTH110, PTH112, PTH113


def _unusable(fault: Exception) -> str:
    """An ``ssl.SSLError`` is an ``OSError``, too."""
    return "holds nothing of that kind" if isinstance(fault, (ssl.SSLError, ValueError)) else "cannot be read"

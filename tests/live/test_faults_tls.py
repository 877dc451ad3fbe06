"""TLS and a token on both legs: from the agent to the Collector, and from one Collector to another."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest
from agents.agent import LOOP_SPANS, Agent, delivered, failed, stopped_in_time
from services.collector import Collector
from services.places import until
from services.stack import PROTOCOLS, telemetry

TOKEN = "a-token-of-this-test"
AGENT = {"OTEL_EXPORTER_OTLP_TIMEOUT": "2"}


def certificate(folder, name):
    """A certificate for loopback that is its own authority, and its key."""
    made = SimpleNamespace(path=folder / f"{name}.pem", key=folder / f"{name}.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", made.path, "-keyout", made.key),
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The certificate of the Collector."""
    return certificate(tmp_path_factory.mktemp("right"), "collector")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """A certificate that has nothing to do with it."""
    return certificate(tmp_path_factory.mktemp("wrong"), "stranger")


@pytest.fixture(scope="module")
def guarded(stack, right):
    """A Collector in front of the stack's Jaeger that wants TLS and a token."""
    settings = {"COLLECTOR_TOKEN": TOKEN, "COLLECTOR_CERTIFICATE": str(right.path), "COLLECTOR_KEY": str(right.key)}
    with Collector(
        stack.jaeger.grpc_address, "collector.yaml", "collector-tls-in.yaml", settings=settings
    ) as collector:
        yield collector


def secured(collector, *, service, protocol, authority, token):
    """The environment of a program that speaks TLS and shows a token, if it has one."""
    https = SimpleNamespace(endpoint=lambda protocol: collector.endpoint(protocol).replace("http://", "https://"))
    header = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{token}"} if token else {}
    trusted = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.path)}
    return telemetry(https, service=service, protocol=protocol, **AGENT, **trusted, **header)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_agent_with_the_right_token_is_heard(stack, guarded, right, protocol):
    """Over TLS, with the authority and the header from the standard variables, all three signals arrive."""
    service = f"right-{protocol.split('/')[0]}"
    with Agent(secured(guarded, service=service, protocol=protocol, authority=right, token=TOKEN)) as agent:
        loop = agent.ask("loop")
        assert agent.end() == delivered(LOOP_SPANS)
    assert stopped_in_time(loop)
    assert len(stack.jaeger.trace(loop["trace"], spans=LOOP_SPANS)) == LOOP_SPANS
    assert guarded.total("toolguard_circuit_trips_total", at_least=1, job=service) == 1
    assert [log["traceId"] for log in guarded.logs(service=service)] == [loop["trace"]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fault", ["another token", "no token", "another authority"])
def test_an_agent_without_the_right_ones_is_not_heard_and_not_harmed(stack, guarded, right, wrong, fault, protocol):
    """Nothing of it arrives and its SDK says that it failed; its loop is stopped at the same call, and it ends well."""
    service = f"{fault} {protocol}"
    token = {"another token": "guessed", "no token": None}.get(fault, TOKEN)
    authority = wrong if fault == "another authority" else right
    with Agent(secured(guarded, service=service, protocol=protocol, authority=authority, token=token)) as agent:
        loop = agent.ask("loop")
        assert agent.end() == failed(LOOP_SPANS)
        assert "Failed to export" in agent.said()
    assert stopped_in_time(loop)
    # What comes after it has arrived, so that would have, too: spans of a trip wait for nothing.
    with Agent(secured(guarded, service="witness", protocol=protocol, authority=right, token=TOKEN)) as witness:
        after = witness.ask("loop")
        witness.end()
    assert stack.jaeger.trace(after["trace"])
    assert service not in stack.jaeger.services()
    assert guarded.metrics("traces_span_metrics_calls_total", job=service) == []


def outward(authority, token):
    """The settings of a Collector that sends to the guarded one."""
    return {
        "COLLECTOR_JAEGER_CA": str(authority.path),
        "COLLECTOR_AUTHORIZATION": f"Bearer {token}",
        "COLLECTOR_KEEP_PERCENT": "100",
    }


@pytest.fixture
def relaying(start, guarded):
    """Starts a Collector that sends to the guarded one, trusting an authority and with a token."""

    def started(authority, token):
        files = ("collector.yaml", "collector-tls-out.yaml")
        return start(Collector, guarded.grpc_address, *files, settings=outward(authority, token))

    return started


def test_a_collector_sends_to_another_over_tls(stack, relaying, right):
    """The trace of a trip goes agent, Collector, TLS and token, Collector, Jaeger; it arrives whole and once."""
    near = relaying(right, TOKEN)
    with Agent(telemetry(near, service="relayed")) as agent:
        loop = agent.ask("loop")
        assert agent.end() == delivered(LOOP_SPANS)
    came = stack.jaeger.trace(loop["trace"], spans=LOOP_SPANS)
    assert len({span["spanId"] for span in came}) == len(came) == LOOP_SPANS


def test_a_collector_that_does_not_trust_the_other_waits(stack, relaying, right, wrong):
    """With another authority it sends nothing and keeps all; once the setting is right and it is restarted, all comes."""
    near = relaying(wrong, TOKEN)
    with Agent(telemetry(near, service="distrustful")) as agent:
        loop = agent.ask("loop")
        assert agent.end() == delivered(LOOP_SPANS)
    assert until(lambda: "certificate signed by unknown authority" in near.log()), near.log()
    assert stack.jaeger.trace(loop["trace"], wait_s=0) == []
    near.env |= outward(right, TOKEN)
    near.restart()
    assert len(stack.jaeger.trace(loop["trace"], spans=LOOP_SPANS)) == LOOP_SPANS


def test_a_token_that_is_refused_loses_the_spans_and_is_counted(relaying, right):
    """To be refused for its token is final for the Collector: it gives the spans up and counts them as failed."""
    near = relaying(right, "guessed")
    with Agent(telemetry(near, service="refused")) as agent:
        agent.ask("loop")
        assert agent.end() == delivered(LOOP_SPANS)

    def given_up():
        return sum(sample.value for sample in near.own_metrics("otelcol_exporter_send_failed_spans"))

    assert until(given_up, enough=lambda count: count >= LOOP_SPANS) == LOOP_SPANS
    assert "Unauthenticated" in near.log()

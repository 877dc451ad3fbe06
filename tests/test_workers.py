"""The warning for several worker processes whose limits are each in their own memory."""

from __future__ import annotations

import logging
import multiprocessing
import sys

import pytest

from otel_toolguard import Session
from otel_toolguard.stores import workers


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """A process that shows nothing of other workers and has said nothing."""
    monkeypatch.setattr(workers, "_told", False)
    monkeypatch.setattr(sys, "argv", ["app.py"])
    for name in workers._WORKERS:
        monkeypatch.delenv(name, raising=False)


def said(caplog):
    return [record.getMessage() for record in caplog.records if "ceilings of its own" in record.getMessage()]


def test_one_process_is_told_nothing(caplog):
    """Without a sign of other workers nothing is said."""
    Session("conversation")
    assert said(caplog) == []


@pytest.mark.parametrize(("name", "value", "warned"), [
    ("WEB_CONCURRENCY", "4", True), ("UVICORN_WORKERS", "2", True), ("WEB_CONCURRENCY", "1", False),
    ("WEB_CONCURRENCY", "", False), ("WEB_CONCURRENCY", "many", False),
])  # fmt: skip
def test_the_environment_tells_of_workers(name, value, warned, monkeypatch, caplog):
    """A number of workers above one is said once, for a session that has a name."""
    monkeypatch.setenv(name, value)
    Session()
    assert said(caplog) == []
    Session("conversation")
    Session("another")
    assert len(said(caplog)) == warned
    assert all(f"{name} is {value}" in text for text in said(caplog))


def test_a_server_of_workers_is_known_by_its_name(monkeypatch, caplog):
    """Under gunicorn or celery the warning comes without a number."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/gunicorn", "app:app"])
    Session("conversation")
    assert len(said(caplog)) == 1


def child(queue):
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("otel_toolguard").addHandler(handler)
    Session("conversation")
    queue.put(records)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.skipif(sys.platform == "win32", reason="has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_is_told(method):
    """A worker started by fork or by spawn says once that it counts for itself."""
    make = multiprocessing.get_context(method)
    queue = make.Queue()
    process = make.Process(target=child, args=(queue,))
    process.start()
    records = queue.get(timeout=60)
    process.join(60)
    assert sum("ceilings of its own" in record for record in records) == 1


def test_a_logger_that_raises_is_not_felt(monkeypatch):
    """A session is made even where the application's logging fails."""
    monkeypatch.setenv("WEB_CONCURRENCY", "4")

    def broken(*_):
        raise RuntimeError("no log")

    monkeypatch.setattr(workers.logger, "warning", broken)
    Session("conversation")

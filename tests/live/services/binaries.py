"""The programs of the services: found in the cache or on the path, else built or downloaded, once per version.

The cache is ``${XDG_CACHE_HOME:-~/.cache}/otel-toolguard/<name>-<version>/``. A first build of Jaeger takes about 13
minutes on two cores, of the Collector 10; both need Go. Prometheus is Debian's package, unpacked and not installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from services.places import CACHE, CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterator

JAEGER_MODULE = "github.com/jaegertracing/jaeger"
JAEGER_VERSION = "v1.76.0"  # as a Go module; it is Jaeger 2.13
COLLECTOR_VERSION = "v0.161.0"
MANIFEST = CONFIG / "builder.yaml"
BUILD_S = 3600


class CannotGetError(Exception):
    """A program is not here and cannot be had; says what to do."""


@dataclass(frozen=True)
class Binary:
    """A program that a service is started from."""

    name: str
    version: str
    path: Path

    def __str__(self) -> str:
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return f"{self.name} {self.version} {self.path} sha256 {digest}"


@cache
def jaeger() -> Binary:
    """Jaeger v2, built from its Go module if need be."""
    path = CACHE / f"jaeger-{JAEGER_VERSION}" / "jaeger"
    with _made(path) as part:
        if part:
            with tempfile.TemporaryDirectory() as build:
                _go("mod", "init", "jaegerbuild", at=build, wants=path)
                _go("get", "-tool", f"{JAEGER_MODULE}/cmd/jaeger@{JAEGER_VERSION}", at=build, wants=path)
                argv = ("build", "-trimpath", "-ldflags=-s -w", "-o", str(part), f"{JAEGER_MODULE}/cmd/jaeger")
                _go(*argv, at=build, wants=path)
    return _told(Binary("jaeger", JAEGER_VERSION, path))


@cache
def collector() -> Binary:
    """A Collector with the parts that builder.yaml lists; another list is another folder of the cache."""
    listed = hashlib.sha256(MANIFEST.read_bytes()).hexdigest()[:8]
    path = CACHE / f"collector-{COLLECTOR_VERSION}-{listed}" / "otelcol-toolguard"
    with _made(path) as part:
        if part:
            with tempfile.TemporaryDirectory() as build:
                tool = f"go.opentelemetry.io/collector/cmd/builder@{COLLECTOR_VERSION}"
                _go("install", tool, at=build, wants=path, GOBIN=build)
                shutil.copy(MANIFEST, build)
                argv = [f"{build}/builder", "--config", MANIFEST.name]
                subprocess.run(argv, cwd=build, env=os.environ | {"CGO_ENABLED": "0"}, check=True, timeout=BUILD_S)
                shutil.move(f"{build}/build/otelcol-toolguard", part)
    return _told(Binary("collector", COLLECTOR_VERSION, path))


@cache
def prometheus() -> Binary:
    """Prometheus on the path, else Debian's."""
    return _told(_of_prometheus("prometheus"))


@cache
def promtool() -> Binary:
    """The tool that checks and tests Prometheus' rules."""
    return _told(_of_prometheus("promtool"))


def _of_prometheus(name: str) -> Binary:
    on_path = shutil.which(name)
    path = Path(on_path) if on_path else _debian("prometheus") / "usr" / "bin" / name
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60)
    version = re.search(r"version (\S+)", said.stdout + said.stderr)
    return Binary(name, version[1] if version else "unknown", path)


def _debian(package: str) -> Path:
    """The folder that a Debian package is unpacked to, with nothing installed and nothing started."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(CACHE / f".{package}.lock"):
        if kept := sorted(CACHE.glob(f"{package}-*/")):
            return kept[-1]
        if not shutil.which("apt-get"):
            raise CannotGetError(f"no {package}: install it so that it is on the path")
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".part-") as part:
            if not _apt("download", package, at=part) and not (
                os.geteuid() == 0 and _apt("update", at=part) and _apt("download", package, at=part)
            ):
                raise CannotGetError(f"no {package}: install it, or let root run apt-get update first")
            (archive,) = Path(part).glob("*.deb")
            content = Path(part) / "content"
            subprocess.run(["dpkg-deb", "-x", str(archive), str(content)], check=True, timeout=300)
            version = archive.name.split("_")[1].replace("%3a", "-")
            return content.rename(CACHE / f"{package}-{version}")


def _apt(*argv: str, at: str) -> bool:
    done = subprocess.run(["apt-get", "--quiet", "--quiet", *argv], cwd=at, check=False, timeout=600)
    return done.returncode == 0


def _go(*argv: str, at: str, wants: Path, **env: str) -> None:
    go = shutil.which("go")
    if go is None:
        raise CannotGetError(f"no Go to build with: install Go, or put the program at {wants}")
    settings = os.environ | {"GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"} | env
    subprocess.run([go, *argv], cwd=at, env=settings, check=True, timeout=BUILD_S)


@contextlib.contextmanager
def _made(path: Path) -> Iterator[Path | None]:
    """A file to make, moved to its place when made; None if it is there. One process makes it, others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        if path.exists():
            yield None
            return
        part = path.with_suffix(".part")
        yield part
        part.chmod(0o755)
        part.rename(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _told(binary: Binary) -> Binary:
    print(binary)
    return binary

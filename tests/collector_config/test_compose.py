"""compose.yaml fits the files that it mounts: no container engine is needed to see that."""

import re

import pytest
from deployed import CONFIG, NOT_OURS, PINNED, VARIABLE, filled, in_use_at_most, parsed, ports, size, variables

COMPOSE = parsed("compose.yaml")
SERVICES = COMPOSE["services"]
STAYING = {name: service for name, service in SERVICES.items() if name != "prepare"}
READS = {"collector": "collector.yaml", "jaeger": "jaeger.yaml"}
OTHERS = {"prometheus": {9090}, "grafana": {3000}}  # where these listen unless told otherwise
PASSED = re.compile(r"\$\{(\w+):-([^}]*)\}")  # for an empty one as well
MOUNTS = [
    (name, *mount.split(":")[:2], mount.endswith(":ro"))
    for name, service in SERVICES.items()
    for mount in service.get("volumes", [])
]
FILES = [mount for mount in MOUNTS if mount[1].startswith("./")]
NEEDS = [
    (name, needed, given["condition"])
    for name, service in SERVICES.items()
    for needed, given in service.get("depends_on", {}).items()
]


def environment(service):
    """The variables of a service where neither the shell nor an .env file sets any."""
    return {name: PASSED.sub(r"\2", str(value)) for name, value in SERVICES[service].get("environment", {}).items()}


def reached(service, *, here=False):
    """The ports of a service that the others, or it itself, can reach."""
    return ports(READS[service], environment(service), here=here) if service in READS else OTHERS[service]


def inside(service, path):
    """The file of this repository that a service sees at a path, or None."""
    for name, source, target, _read_only in FILES:
        if name == service and (path == target or path.startswith(f"{target}/")):
            return CONFIG / source / path[len(target) :].lstrip("/")
    return None


@pytest.mark.parametrize("name", READS)
def test_what_is_passed_on_has_the_default_of_the_file(name):
    """A variable of the shell goes in under its own name and is never empty: it has the default of the configuration."""
    defaults = dict(VARIABLE.findall((CONFIG / READS[name]).read_text(encoding="utf-8")))
    passed = {key: value for key, value in SERVICES[name]["environment"].items() if "$" in str(value)}
    assert passed
    assert passed == {key: f"${{{key}:-{defaults[key]}}}" for key in passed}
    assert all(SERVICES[name]["environment"].values())


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name):
    """Each image has a tag with a full version."""
    assert PINNED.fullmatch(SERVICES[name]["image"])


def test_the_collector_is_of_the_release_that_is_built_for_tests():
    """The image's release is that of builder.yaml, whose build validates the same files."""
    assert SERVICES["collector"]["image"].endswith(":" + parsed("builder.yaml")["dist"]["version"])


@pytest.mark.parametrize("name", STAYING)
def test_only_this_machine_reaches_what_is_published(name):
    """Every published port is on loopback, has its own number outside and is one that the program listens at."""
    for address, outside, port in (published.split(":") for published in STAYING[name]["ports"]):
        assert (address, outside) == ("127.0.0.1", port)
        assert int(port) in reached(name)


@pytest.mark.parametrize(("name", "source", "target", "read_only"), FILES)
def test_each_mounted_file_is_here_and_cannot_be_written(name, source, target, read_only):
    """What is mounted from the repository exists and is read-only."""
    assert (CONFIG / source).exists()
    assert read_only


def test_volumes_are_declared_and_used():
    """The named volumes of the services are just those declared."""
    assert {source for _name, source, _target, _read_only in MOUNTS if not source.startswith("./")} == set(
        COMPOSE["volumes"]
    )


@pytest.mark.parametrize(("name", "file"), READS.items())
def test_each_program_is_given_its_configuration(name, file):
    """The path after --config is where that very file is mounted."""
    option, path = SERVICES[name]["command"]
    assert option == "--config"
    assert inside(name, path) == CONFIG / file


@pytest.mark.parametrize(("name", "file"), READS.items())
def test_each_variable_is_one_that_the_file_reads(name, file):
    """No variable of compose.yaml is spelled otherwise than in the configuration."""
    assert set(SERVICES[name]["environment"]) - NOT_OURS <= variables(file)


@pytest.mark.parametrize("name", STAYING)
def test_a_health_check_asks_a_port_of_its_own_container(name):
    """Each service that stays has a health check by HTTP, at a port where its program listens."""
    kind, program, *arguments = STAYING[name]["healthcheck"]["test"]
    assert kind == "CMD"
    assert (program == "wget") == (name != "collector")
    host, port = arguments[-1].split("/")[2].split(":")
    assert host == "127.0.0.1"
    assert int(port) in reached(name, here=True)


def test_the_collectors_health_check_has_a_program():
    """The image has none, so the one that `prepare` leaves in a volume is asked, and it has ended by then."""
    program = SERVICES["collector"]["healthcheck"]["test"][1]
    left = {(source, target) for name, source, target, _ in MOUNTS if name == "prepare"}
    assert ("probe", program.rpartition("/")[0]) in left
    assert ("collector", "probe", "/probe", True) in MOUNTS
    assert program in SERVICES["prepare"]["command"][-1]
    assert ("collector", "prepare", "service_completed_successfully") in NEEDS


def test_the_collectors_user_owns_its_volume():
    """Queue and logs are below a folder on a volume that was given to the user of the Collector."""
    read = filled("collector.yaml", environment("collector"))
    folder = next(target for name, source, target, _ in MOUNTS if (name, source) == ("collector", "collector"))
    assert read["extensions"]["file_storage/queue"]["directory"].startswith(f"{folder}/")
    assert read["exporters"]["file/logs"]["path"].startswith(f"{folder}/")
    assert f"chown {SERVICES['collector']['user']} {folder} " in SERVICES["prepare"]["command"][-1]
    assert ("prepare", "collector", folder, False) in MOUNTS


@pytest.mark.parametrize(("name", "needed", "condition"), NEEDS)
def test_conditions_can_be_met(name, needed, condition):
    """Health is waited for where there is a health check, and an end where a service ends."""
    assert needed in SERVICES
    ends = "restart" not in SERVICES[needed]
    assert (condition == "service_completed_successfully") == ends
    assert condition != "service_healthy" or "healthcheck" in SERVICES[needed]


def test_services_find_each_other():
    """Every address that a file names is a service here and a port of it that others reach."""
    sources = parsed("grafana/provisioning/datasources/toolguard.yaml")["datasources"]
    named = {
        filled("collector.yaml", environment("collector"))["exporters"]["otlp_grpc/jaeger"]["endpoint"],
        *parsed("prometheus/targets-compose.yaml")[0]["targets"],
        *(source["url"].removeprefix("http://") for source in sources),
    }
    assert len(named) == 5
    for address in named:
        service, port = address.split(":")
        assert int(port) in reached(service)


def test_prometheus_finds_its_files():
    """Its configuration, rules and targets are all mounted where they are looked for."""
    option = next(text for text in SERVICES["prometheus"]["command"] if text.startswith("--config.file="))
    path = option.partition("=")[2]
    assert inside("prometheus", path) == CONFIG / "prometheus/prometheus.yaml"
    read = parsed("prometheus/prometheus.yaml")
    looked_for = read["rule_files"] + read["scrape_configs"][0]["file_sd_configs"][0]["files"]
    assert len(looked_for) == 3
    assert all(inside("prometheus", f"{path.rpartition('/')[0]}/{name}") for name in looked_for)


def test_grafana_finds_its_dashboards():
    """The folder that is provisioned is the one with the dashboards, and both kinds of provisioning are mounted."""
    [provider] = parsed("grafana/provisioning/dashboards/toolguard.yaml")["providers"]
    assert inside("grafana", provider["options"]["path"]) == CONFIG / "grafana/dashboards"
    assert all(
        inside("grafana", f"/etc/grafana/provisioning/{kind}/toolguard.yaml").is_file()
        for kind in ("dashboards", "datasources")
    )


def test_go_collects_before_the_collector_refuses():
    """GOMEMLIMIT is below what memory_limiter allows of the container's memory."""
    service = SERVICES["collector"]
    assert size(service["environment"]["GOMEMLIMIT"]) <= in_use_at_most(size(service["mem_limit"]))

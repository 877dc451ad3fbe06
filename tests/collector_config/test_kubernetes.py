"""The Kubernetes example fits together and fits the files that it mounts: no cluster is needed to see that."""

import pytest
from deployed import CONFIG, NOT_OURS, PINNED, documents, filled, in_use_at_most, parsed, ports, size, variables

KUSTOMIZATION = parsed("kustomization.yaml")
NAMESPACE = KUSTOMIZATION["namespace"]
APPLIED = [document for name in KUSTOMIZATION["resources"] for document in documents(name)]
MAPS = {generated["name"]: generated["files"] for generated in KUSTOMIZATION["configMapGenerator"]}
IMAGES = {service["image"] for service in parsed("compose.yaml")["services"].values()}
AGENT = parsed("kubernetes/agent.yaml")
MONITOR = parsed("kubernetes/podmonitor.yaml")


def of_kind(*kinds):
    """The applied documents of these kinds, by name."""
    return {document["metadata"]["name"]: document for document in APPLIED if document["kind"] in kinds}


WORKLOADS = of_kind("StatefulSet", "Deployment")
SERVICES = of_kind("Service")
READS = {"otel-collector": "collector.yaml", "jaeger": "jaeger.yaml"}


def pod(workload):
    """What a workload's pods are."""
    return workload["spec"]["template"]["spec"]


def container(name):
    """The one container of a workload's pods."""
    [only] = pod(WORKLOADS[name])["containers"]
    return only


def environment(name):
    """The variables of a workload's container."""
    return {variable["name"]: variable["value"] for variable in container(name)["env"]}


def selected(labels):
    """The workloads whose pods have these labels."""
    return [
        workload
        for workload in WORKLOADS.values()
        if labels.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
    ]


def test_every_file_is_applied_or_says_that_it_is_not():
    """The kustomization names files that exist, and the others in the folder begin with "# Not applied"."""
    here = {f"kubernetes/{path.name}" for path in (CONFIG / "kubernetes").glob("*.yaml")}
    assert set(KUSTOMIZATION["resources"]) <= here
    for name in here - set(KUSTOMIZATION["resources"]):
        assert (CONFIG / name).read_text(encoding="utf-8").startswith("# Not applied")


def test_maps_are_made_from_the_very_files():
    """Each configuration map holds a file that is here, beside or below the kustomization."""
    assert all((CONFIG / file).is_file() and ".." not in file for files in MAPS.values() for file in files)


def test_the_namespace_is_made():
    """The namespace that everything is put into is among the documents."""
    assert list(of_kind("Namespace")) == [NAMESPACE]


@pytest.mark.parametrize("name", WORKLOADS)
def test_images_are_those_of_compose(name):
    """The same pinned images are used here and in compose.yaml."""
    assert container(name)["image"] in IMAGES
    assert PINNED.fullmatch(container(name)["image"])


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_owns_its_pods(name):
    """The selector of a workload is part of its pods' labels, and of nobody else's."""
    assert selected(WORKLOADS[name]["spec"]["selector"]["matchLabels"]) == [WORKLOADS[name]]


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_program_is_given_its_configuration(name):
    """The path after --config is where the map with that very file is mounted."""
    option, path = container(name)["args"]
    assert option == "--config"
    folder, _, file = path.rpartition("/")
    [mount] = [mount for mount in container(name)["volumeMounts"] if mount["mountPath"] == folder]
    [volume] = [volume for volume in pod(WORKLOADS[name])["volumes"] if volume["name"] == mount["name"]]
    assert file == READS[name]
    assert file in MAPS[volume["configMap"]["name"]]


@pytest.mark.parametrize("name", WORKLOADS)
def test_volumes_and_mounts_are_the_same(name):
    """Every volume is mounted and every mount has a volume."""
    claims = [claim["metadata"]["name"] for claim in WORKLOADS[name]["spec"].get("volumeClaimTemplates", [])]
    volumes = claims + [volume["name"] for volume in pod(WORKLOADS[name])["volumes"]]
    assert sorted(volumes) == sorted(mount["name"] for mount in container(name)["volumeMounts"])


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_variable_is_one_that_the_file_reads(name):
    """No variable is spelled otherwise than in the configuration."""
    assert set(environment(name)) - NOT_OURS <= variables(READS[name])


@pytest.mark.parametrize("name", WORKLOADS)
def test_ports_are_listened_at(name):
    """Every port of a container is one that the program, configured so, opens to others."""
    assert {port["containerPort"] for port in container(name)["ports"]} <= ports(READS[name], environment(name))


@pytest.mark.parametrize(
    ("name", "probe"),
    [
        *(("otel-collector", kind) for kind in ("startupProbe", "readinessProbe", "livenessProbe")),
        *(("jaeger", kind) for kind in ("readinessProbe", "livenessProbe")),
    ],
)
def test_probes_ask_where_health_is_told(name, probe):
    """A probe names the port of the health extension."""
    asked = container(name)[probe]["httpGet"]["port"]
    [port] = [port["containerPort"] for port in container(name)["ports"] if port["name"] == asked]
    extensions = filled(READS[name], environment(name))["extensions"]
    told = extensions.get("health_check") or extensions["healthcheckv2"]["http"]
    assert told["endpoint"] == f"0.0.0.0:{port}"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_leads_to_ports_of_one_workload(name):
    """The selector of a service finds one workload, and each of its ports has a name there."""
    spec = SERVICES[name]["spec"]
    [workload] = selected(spec["selector"])
    names = {port["name"] for port in container(workload["metadata"]["name"])["ports"]}
    assert {port["targetPort"] for port in spec["ports"]} <= names


def test_the_collector_finds_jaeger():
    """The back end that the Collector is told is a service here and its OTLP port."""
    service, port = environment("otel-collector")["COLLECTOR_JAEGER"].split(":")
    offered = {port["port"]: port["name"] for port in SERVICES[service]["spec"]["ports"]}
    assert offered[int(port)] == "otlp-grpc"


def test_the_stateful_set_has_its_headless_service():
    """Each pod of the Collector has a name of its own, by a service without an address."""
    governing = SERVICES[WORKLOADS["otel-collector"]["spec"]["serviceName"]]
    assert governing["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("name", WORKLOADS)
def test_pods_are_allowed_where_little_is(name):
    """Each pod keeps to the level that the namespace enforces, and cannot write to its image."""
    own, inside = pod(WORKLOADS[name])["securityContext"], container(name)["securityContext"]
    assert own["runAsNonRoot"]
    assert own["runAsUser"] == 10001
    assert own["seccompProfile"] == {"type": "RuntimeDefault"}
    assert inside == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_collector_may_write_to_its_volume():
    """The volume belongs to the group of the Collector's user, and queue and logs are on it and fit."""
    name = "otel-collector"
    [claim] = WORKLOADS[name]["spec"]["volumeClaimTemplates"]
    [folder] = [
        mount["mountPath"] for mount in container(name)["volumeMounts"] if mount["name"] == claim["metadata"]["name"]
    ]
    read = filled(READS[name], environment(name))
    logs = read["exporters"]["file/logs"]
    assert read["extensions"]["file_storage/queue"]["directory"].startswith(f"{folder}/")
    assert logs["path"].startswith(f"{folder}/")
    own = pod(WORKLOADS[name])["securityContext"]
    assert own["fsGroup"] == own["runAsGroup"]
    rotation = logs["rotation"]
    needed = read["exporters"]["otlp_grpc/jaeger"]["sending_queue"]["queue_size"]
    needed += rotation["max_megabytes"] * 10**6 * (rotation["max_backups"] + 1)
    assert needed <= size(claim["spec"]["resources"]["requests"]["storage"]) / 2  # a file of the queue does not shrink


def test_go_collects_before_the_collector_refuses():
    """GOMEMLIMIT is below what memory_limiter allows of the container's memory."""
    limit = size(container("otel-collector")["resources"]["limits"]["memory"])
    assert size(environment("otel-collector")["GOMEMLIMIT"]) <= in_use_at_most(limit)


def test_the_agent_sends_to_the_collector():
    """The agent's endpoint is the Collector's service in its namespace, at the port of the protocol that it names."""
    [agent] = pod(AGENT)["containers"]
    said = {variable["name"]: variable.get("value") for variable in agent["env"]}
    host, port = said["OTEL_EXPORTER_OTLP_ENDPOINT"].removeprefix("http://").split(":")
    service, namespace = host.split(".")
    assert namespace == NAMESPACE
    offered = {port["port"]: port["name"] for port in SERVICES[service]["spec"]["ports"]}
    assert offered[int(port)] == f"otlp-{said['OTEL_EXPORTER_OTLP_PROTOCOL']}"


def test_each_agent_is_an_instance():
    """Name, instance by the pod's uid and the variables before it are set, so that no two pods share a counter."""
    [agent] = pod(AGENT)["containers"]
    names = [variable["name"] for variable in agent["env"]]
    said = {variable["name"]: variable for variable in agent["env"]}
    assert said["OTEL_SERVICE_NAME"]["value"]
    assert said["POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert "service.instance.id=$(POD_UID)" in said["OTEL_RESOURCE_ATTRIBUTES"]["value"]
    assert names.index("POD_UID") < names.index("OTEL_RESOURCE_ATTRIBUTES")


def test_the_monitor_reads_the_agents_metrics_under_their_names():
    """The monitor finds the Collector's pods, honours the agents' labels, and calls the job as the alerts do."""
    spec = MONITOR["spec"]
    [workload] = selected(spec["selector"]["matchLabels"])
    assert MONITOR["metadata"]["namespace"] == NAMESPACE
    ports = {port["name"]: port["containerPort"] for port in container(workload["metadata"]["name"])["ports"]}
    assert [ports[endpoint["port"]] for endpoint in spec["podMetricsEndpoints"]] == [8889, 8888]
    assert all(endpoint["honorLabels"] for endpoint in spec["podMetricsEndpoints"])
    [scraped] = parsed("prometheus/prometheus.yaml")["scrape_configs"]
    assert workload["spec"]["template"]["metadata"]["labels"][spec["jobLabel"]] == scraped["job_name"]

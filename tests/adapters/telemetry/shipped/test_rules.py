"""Rules, configuration and compose file: read as the programs that use them do, and the alerts' own tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import needs
from prometheus import promtool

from eventrain.adapters.cli.telemetry_init import TARGET, shipped_files
from eventrain.adapters.telemetry.shipped import dashboard

SHIPPED = dashboard.HERE
DOCS = Path(__file__).parents[4] / "docs"
needs_promtool = needs("prometheus", "promtool")


def read(name: str) -> Any:
    """Return the shipped YAML file `name`, parsed."""
    return yaml.safe_load((SHIPPED / name).read_text(encoding="utf-8"))


def alerts() -> list[dict[str, Any]]:
    """Return every alerting rule."""
    return [rule for group in read("rules/alerts.yml")["groups"] for rule in group["rules"]]


@needs_promtool
def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    """The configuration is valid, with the rules and the targets that it names."""
    said = promtool("check", "config", SHIPPED / "prometheus.yml")
    assert "2 rule files found" in said
    assert f"{len(alerts())} rules found" in said


@needs_promtool
@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_not_beside_it() -> None:
    """The rules' own tests pass, which say of each alert when it fires and which of its neighbours stay quiet."""
    tests = sorted((SHIPPED / "rules" / "tests").glob("*.yml"))
    assert promtool("test", "rules", *tests).count("SUCCESS") == len(tests)


def test_each_alert_is_tested_firing_and_quiet() -> None:
    """For each alert and severity there is a case in which it fires, and for each alert one in which it is quiet."""
    firing, quiet = set(), set()
    for path in (SHIPPED / "rules" / "tests").glob("*.yml"):
        for case in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for test in case["alert_rule_test"]:
                firing |= {(test["alertname"], one["exp_labels"]["severity"]) for one in test["exp_alerts"]}
                quiet |= set() if test["exp_alerts"] else {test["alertname"]}
    assert firing == {(rule["alert"], rule["labels"]["severity"]) for rule in alerts()}
    assert quiet == {rule["alert"] for rule in alerts()}


def test_each_alert_says_what_happens_and_what_to_do() -> None:
    """The summary names what it is about, the description a command or a setting of ours; severities are three."""
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert "$labels." in rule["annotations"]["summary"]
        assert re.search(r"`eventrain \w+|\[\w+\]", rule["annotations"]["description"]), rule["alert"]


def test_each_alert_and_recording_rule_is_documented() -> None:
    """The table in the documentation lists every alert, and the names that are recorded stand below it."""
    text = (DOCS / "dashboards.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| (RL\w+) \|", text, re.MULTILINE)) == {rule["alert"] for rule in alerts()}
    recorded = [rule["record"] for group in read("rules/recording.yml")["groups"] for rule in group["rules"]]
    assert [name for name in recorded if f"`{name}`" not in text] == []


def test_commands_and_settings_that_the_texts_name_exist() -> None:
    """What an alert or a panel tells its reader to type is a command, and what to set is a section, of eventrain."""
    from eventrain.adapters.cli.main import commands
    from eventrain.core.config import RunConfig
    from eventrain.events.types import BY_KIND

    texts = "\n".join(shipped_files().values())
    coming = {"top"}
    assert set(re.findall(r"`eventrain (\w+)", texts)) <= set(commands.commands) | coming
    assert set(re.findall(r"--type (\w+)", texts)) <= set(BY_KIND)
    assert set(re.findall(r"\[(\w+)\](?= |\.|,|\"|$)", texts)) & {"rollout", "deadlines", "engine"} <= set(
        RunConfig.model_fields
    )
    for section, key in re.findall(r"--set (\w+)\.(\w+)", texts):
        assert key in RunConfig.model_fields[section].annotation.model_fields


def test_the_compose_file_mounts_what_ships_and_pins_what_it_runs() -> None:
    """Every mounted path is among the files, every image has a version, every port is local, the run is reachable."""
    compose = read("compose.yaml")
    assert set(compose["services"]) == {"prometheus", "grafana", "jaeger"}
    ports = [port for service in compose["services"].values() for port in service["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert "127.0.0.1:4318:4318" in ports
    for service in compose["services"].values():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (SHIPPED / source).exists() if source.startswith("./") else source in compose["volumes"]
    assert "host.docker.internal:host-gateway" in compose["services"]["prometheus"]["extra_hosts"]
    ((target,),) = [group["targets"] for group in read("targets/run.yml")]
    assert target == TARGET


def test_grafana_finds_its_datasources_and_the_dashboard() -> None:
    """Datasources point at the services of the compose file, and the provider at the folder mounted there."""
    compose = read("compose.yaml")
    sources = read("grafana/provisioning/datasources/eventrain.yaml")["datasources"]
    assert {source["type"] for source in sources} == {"prometheus", "jaeger"}
    for source in sources:
        service, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()
        assert any(one.endswith(f":{port}") for one in compose["services"][service]["ports"])
    (prometheus,) = (source for source in sources if source["type"] == "prometheus")
    assert prometheus["jsonData"]["timeInterval"] == read("prometheus.yml")["global"]["scrape_interval"]
    (provider,) = read("grafana/provisioning/dashboards/eventrain.yaml")["providers"]
    mounts = dict(volume.split(":")[:2] for volume in compose["services"]["grafana"]["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    home = compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{dashboard.FILE.name}"


def test_jaeger_takes_what_a_run_sends_to_one_address() -> None:
    """Traces are stored, metrics are taken too, and every part that a pipeline names is configured."""
    config = read("jaeger.yaml")
    pipelines = config["service"]["pipelines"]
    assert set(pipelines) == {"traces", "metrics"}
    for pipeline in pipelines.values():
        for part, names in pipeline.items():
            assert set(names) <= set(config[part])
        assert pipeline["receivers"] == ["otlp"]
    assert set(config["service"]["extensions"]) == set(config["extensions"])
    assert config["receivers"]["otlp"]["protocols"]["http"]["endpoint"].endswith(":4318")
    (storage,) = config["extensions"]["jaeger_storage"]["backends"]
    assert config["extensions"]["jaeger_query"]["storage"]["traces"] == storage
    assert config["exporters"]["jaeger_storage_exporter"]["trace_storage"] == storage

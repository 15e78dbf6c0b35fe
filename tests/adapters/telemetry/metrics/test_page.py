"""The page that Prometheus reads: its names, its types, its size, and when it answers."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from metric_runs import SetClock, eventful_run, page, samples, serving
from programs import needs
from prometheus import Prometheus, promtool
from told_runs import ToldRun, phased_run

from eventrain.adapters.telemetry.metrics.catalog import METRICS
from eventrain.adapters.telemetry.metrics.live import LiveMetrics
from eventrain.adapters.wording import MissingExtra
from eventrain.core.config import TelemetrySection
from eventrain.events.types import (
    EnvStepStarted,
    LlmCallStarted,
    LoopLagSampled,
    PhaseEntered,
    TelemetryDegraded,
    TrajectoryFailed,
)

GOLDEN = Path(__file__).with_name("golden_metrics.txt")


def end(told: ToldRun) -> SetClock:
    """Return a clock that stands at the end of what was told."""
    return SetClock(told.now_s)


def test_every_metric_is_on_the_page_and_nothing_else() -> None:
    """The types on the page are those of the catalog, one family each, and target_info."""
    told = eventful_run()
    with serving(told.records, end(told)) as live:
        text = page(live)
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert types.pop("target_info") == "gauge"
    assert types == {metric.prometheus: metric.kind for metric in METRICS}


def test_labels_are_those_of_the_catalog() -> None:
    """Every series has the labels of its metric and the run's id, and none that names a trajectory or a group."""
    told = eventful_run()
    with serving(told.records, end(told)) as live:
        found = samples(page(live))
    for metric in METRICS:
        names = {metric.prometheus} if metric.kind != "histogram" else {
            f"{metric.prometheus}{suffix}" for suffix in ("_bucket", "_count", "_sum")
        }  # fmt: skip
        series = [dict(labels) for name, labels in found if name in names]
        assert series, metric.prometheus
        for labels in series:
            assert set(labels) - {"le"} == {"run", *metric.labels}
            assert labels["run"] == "told-20260101-120000"
    assert not {label for _, labels in found for label, _ in labels} & {
        "trajectory",
        "group",
        "step",
        "prompt",
    }
    assert not [value for _, labels in found for _, value in labels if re.fullmatch(r"\d+/\d+", value)]


@needs("promtool")
def test_promtool_finds_nothing() -> None:
    """`promtool check metrics` has nothing to say of the page."""
    told = eventful_run()
    with serving(told.records, end(told)) as live:
        text = page(live)
    assert promtool("check", "metrics", given=text) == ""


def test_the_page_is_what_it_was() -> None:
    """The whole text is, byte for byte, the stored one; EVENTRAIN_WRITE_GOLDEN=1 stores it anew."""
    told = eventful_run()
    with serving(told.records, end(told)) as live:
        text = page(live)
    # The only line that is of this process and not of the run.
    text = re.sub(r"(?m)^target_info\{.*$", "target_info{...} 1.0", text)
    if os.environ.get("EVENTRAIN_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_instance_has_a_name_that_a_restart_keeps() -> None:
    """`service.instance.id` is made of the run's id, not at random."""
    told = phased_run(1)
    with serving(told.records, end(told)) as live:
        [info] = [line for line in page(live).splitlines() if line.startswith("target_info{")]
    assert 'service_instance_id="told-20260101-120000-controller"' in info
    assert 'rl_run_id="told-20260101-120000"' in info
    assert f'process_pid="{os.getpid()}"' in info


def crowd(count: int) -> ToldRun:
    """Tell a run with `count` trajectories in flight, half of them in a call."""
    told = phased_run(2, finish=False)
    for group in range(count // 8):
        told.dispatch(1000 + group, target=3, version=2, size=8)
        for member in range(8):
            name = f"{1000 + group}/{member}"
            if member % 2:
                call = LlmCallStarted(
                    trajectory=name, turn=0, engine="engine-0", prompt_tokens=3, max_tokens=8
                )
                told.publish("engine_pool", call)
            else:
                told.publish("rollout", EnvStepStarted(trajectory=name, turn=0))
    return told


def test_a_scrape_with_thousands_of_trajectories_is_quick_and_small() -> None:
    """With 4,096 trajectories in flight there are under 2,000 series, as many as with 8, made within 30 ms."""
    counts = []
    for count in (8, 4096):
        told = crowd(count)
        with serving(told.records, end(told)) as live:
            page(live)
            best = float("inf")
            for _ in range(8):
                began = time.perf_counter()
                text = page(live)
                best = min(best, time.perf_counter() - began)
        found = samples(text)
        run = (("run", "told-20260101-120000"),)
        assert found["rl_rollouts_inflight", (*run, ("stage", "llm"))] == count / 2
        counts.append(len(found))
        print(f"{count} in flight: {len(found)} series, {best * 1e3:.1f} ms a scrape")
    assert counts[0] == counts[1] < 2000
    assert best < 0.2, "a quick machine needs 5 ms"


def test_each_scrape_is_of_one_moment() -> None:
    """While events come and several scrape at once, every page has exactly one phase and whole families."""
    told = phased_run(40)
    texts: list[str] = []
    with serving(told.records[:20], SetClock(1.0)) as live, ThreadPoolExecutor(3) as pool:
        for place in range(20, len(told.records), 150):
            scrapes = [pool.submit(page, live) for _ in range(3)]
            for record in told.records[place : place + 150]:
                live.apply_batch([record])
            texts += [scrape.result() for scrape in scrapes]
    assert len(texts) > 30
    for text in texts:
        found = samples(text)  # fails on a series that stands there twice
        phases = [value for (name, _), value in found.items() if name == "rl_trainer_phase"]
        assert len(phases) == 9
        assert sum(phases) == 1


def test_open_intervals_grow_with_every_event_and_not_with_the_clock() -> None:
    """While nothing reaches the log nothing is counted that a kill would take back; any sample is enough."""
    told = phased_run(1, finish=False)
    told.publish("trainer", PhaseEntered(phase="waiting_for_buffer", step=1))
    clock = end(told)
    key = "rl_trainer_phase_seconds_total", (("phase", "waiting_for_buffer"), ("run", "told-20260101-120000"))
    with serving(told.records, clock) as live:
        first = samples(page(live))[key]
        clock.seconds += 600
        assert samples(page(live))[key] == first
        told.after(600)
        lag = LoopLagSampled(window_s=5.0, counts=(50, *[0] * 11), sum_s=0.0, max_s=0.0)
        live.apply_batch([told.publish("telemetry", lag)])
        assert samples(page(live))[key] == pytest.approx(first + 600)


def test_a_batch_does_not_wait_for_a_snapshot() -> None:
    """Records that come while somebody takes a snapshot are put down at once, and are in the next one."""
    told = phased_run(1)
    with serving(told.records[:10], end(told)) as live:
        inside, go_on = threading.Event(), threading.Event()
        original = live._meter.snapshot

        def slowly(now_ns: int):
            inside.set()
            assert go_on.wait(5)
            return original(now_ns)

        live._meter.snapshot = slowly
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(live.snapshot)
            assert inside.wait(5)
            live.apply_batch(told.records[10:])
            assert not taken.done()
            go_on.set()
            assert taken.result().values["rl_events_total"][()] == 10
        assert live.snapshot().values["rl_events_total"][()] == len(told.records)


def test_a_defect_of_the_fold_does_not_reach_the_run() -> None:
    """It is one report with the event at which it happened; the page has no figures then, rather than wrong ones."""
    told = phased_run(1)
    broken = told.records[5]._replace(event=TrajectoryFailed.model_construct(trajectory="0/0"))
    with serving([*told.records[:5], broken], end(told)) as live:
        live.apply_batch(told.records[6:])
        assert "rl_" not in "".join(name for name, _ in samples(page(live)) if name != "target_info")
        [report] = live.take_reports()
    assert report.part == "metrics"
    assert report.missing.startswith("metrics ended with a defect, AttributeError at seq 5: ")


def test_a_taken_port_is_one_report_and_the_run_goes_on() -> None:
    """The report says where and why; folding and closing go on as if nothing were asked for."""
    told = phased_run(1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with serving(told.records, end(told), prometheus_port=port) as live:
            [report] = live.take_reports()
            assert live.port is None
            assert live.take_reports() == []
            assert live.snapshot().values["rl_steps_total"][()] == 1
    assert isinstance(report, TelemetryDegraded)
    assert report.part == "metrics"
    assert report.missing == f"no /metrics page at 127.0.0.1:{port}: address already in use"


def test_a_missing_library_is_one_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says what to install, and the run goes on without page and push."""

    def missing(module: str, extra: str) -> None:
        raise MissingExtra(f"{module} is not installed: pip install 'eventrain[{extra}]'")

    monkeypatch.setattr("eventrain.adapters.telemetry.metrics.live.require", missing)
    told = phased_run(1)
    with serving(told.records, end(told)) as live:
        [report] = live.take_reports()
        assert live.port is None
    assert report == TelemetryDegraded(
        part="metrics",
        missing="opentelemetry.sdk.metrics is not installed: pip install 'eventrain[telemetry]'",
        works="the log has it all: eventrain export openmetrics",
    )


def test_an_address_of_another_host_is_one_report() -> None:
    """A name that cannot be bound is a report too."""
    told = phased_run(1)
    with serving(told.records, end(told), prometheus_host="192.0.2.1") as live:
        [report] = live.take_reports()
    assert report.missing.startswith("no /metrics page at 192.0.2.1:0: ")


def test_only_metrics_lies_there() -> None:
    """Another path is 404, and says where the metrics are."""
    told = phased_run(1)
    with serving(told.records, end(told)) as live:
        with pytest.raises(urllib.error.HTTPError) as error:
            page(live, "/")
        with error.value as answer:
            assert answer.code == 404
            assert b"/metrics" in answer.read()


def test_two_runs_in_one_process_do_not_meet() -> None:
    """Each page has its own run and nothing of the other."""
    one, other = phased_run(1, name="one"), phased_run(1, name="other")
    with serving(one.records, end(one)) as first, serving(other.records, end(other)) as second:
        texts = page(first), page(second)
    for text, mine, others in ((texts[0], "one", "other"), (texts[1], "other", "one")):
        assert f'run="{mine}-' in text
        assert f'run="{others}-' not in text


def test_nothing_is_left_behind() -> None:
    """After the close there are no threads more than before, and the port is free again."""
    before = set(threading.enumerate())
    told = phased_run(1)
    with serving(told.records, end(told)) as live:
        page(live)
        port = live.port
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(5)
    assert not [thread for thread in left if thread.is_alive()]
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_past_records_may_be_folded_before_the_start() -> None:
    """A resumed run folds its log, starts, and goes on from the same counts under the same id."""
    told = phased_run(2)
    live = LiveMetrics(TelemetrySection(prometheus_port=0), end(told))
    live.apply_batch(told.records[:-1])
    live.start()
    try:
        live.apply_batch(told.records[-1:])
        assert samples(page(live))["rl_steps_total", (("run", "told-20260101-120000"),)] == 2
    finally:
        live.close(2.0)


def test_without_settings_nothing_is_served() -> None:
    """Neither a port nor a receiver: no thread, no socket, no report."""
    before = threading.active_count()
    told = phased_run(1)
    live = LiveMetrics(TelemetrySection(), end(told))
    live.start()
    live.apply_batch(told.records)
    assert (live.port, live.take_reports(), threading.active_count()) == (None, [], before)
    live.close(1.0)


@pytest.mark.slow
@needs("prometheus")
def test_a_real_prometheus_scrapes_the_page(tmp_path: Path) -> None:
    """It takes the page as it asks for it, every series of it, and finds one phase."""
    told = eventful_run()
    with serving(told.records, end(told)) as live:
        series = len(samples(page(live)))
        config = tmp_path / "scraping.yml"
        config.write_text(
            "global: {scrape_interval: 200ms}\n"
            f"scrape_configs: [{{job_name: run, static_configs: [{{targets: ['127.0.0.1:{live.port}']}}]}}]\n"
        )
        with Prometheus(tmp_path / "server", config) as server:
            server.await_query("up == 1", 30)
            taken = server.query("scrape_samples_scraped")
            phase = server.query("rl_trainer_phase == 1")
            joined = server.query("rl_steps_total * on (run) group_left (model) rl_run_info")
    assert [one.value for one in taken] == [series]
    assert [one.labels["phase"] for one in phase] == ["waiting_for_buffer"]
    assert [(one.labels["model"], one.value) for one in joined] == [("tiny", 2.0)]

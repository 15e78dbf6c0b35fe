"""GPUs, measured through a double of pynvml, and without a driver for real."""

from __future__ import annotations

import inspect

import pynvml
import pytest
from nvml_double import Gpu, Nvml

from eventrain.adapters.telemetry.devices.nvidia import NvidiaSource
from eventrain.adapters.telemetry.devices.source import SourceAbsent, SourceFailed

FUNCTIONS = [name for name in vars(Nvml) if name.startswith("nvml")]


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def opened(nvml: Nvml) -> NvidiaSource:
    source = NvidiaSource(nvml, now=lambda: nvml.now_s)
    source.open()
    return source


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_double_has_the_functions_of_the_installed_module(name: str) -> None:
    """Each function of the double takes the arguments that pynvml's own takes."""
    ours = list(inspect.signature(getattr(Nvml, name)).parameters)[1:]
    assert ours == list(inspect.signature(getattr(pynvml, name)).parameters)


def test_without_a_driver_there_is_nothing_to_report() -> None:
    """On a machine without NVIDIA's driver the real library says so, and the source is absent, not failed."""
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        with pytest.raises(SourceAbsent, match="no NVIDIA driver"):
            NvidiaSource().open()
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has a driver")


def test_counters_are_exact_for_any_window() -> None:
    """A GPU that works in every even second reads 1, 0 and a half where the windows say so; SM share comes along."""
    gpu = Gpu(
        has_counters=True, busy=lambda s: 100.0 * (int(s) % 2 == 0), active=lambda s: 40.0 * (int(s) % 2 == 0)
    )
    nvml = Nvml(gpu)
    source = opened(nvml)
    found = []
    for now_s in (1.0, 2.0, 4.0):
        nvml.now_s = now_s
        (reading,) = source.sample()
        found.append((reading.window_s, reading.utilization, reading.sm_active, reading.source))
    assert found == [
        (1.0, pytest.approx(1.0), pytest.approx(0.4), "gpm"),
        (1.0, pytest.approx(0.0), pytest.approx(0.0), "gpm"),
        (2.0, pytest.approx(0.5), pytest.approx(0.2), "gpm"),
    ]
    source.close()
    assert (nvml.opened, nvml.counters) == (0, 0)


def test_reads_of_the_counters_that_are_too_close_join_the_next_window() -> None:
    """After 20 ms there is no reading, and the next one covers all the time since the last."""
    nvml = Nvml(Gpu(has_counters=True, busy=lambda s: 50.0))
    source = opened(nvml)
    nvml.now_s = 0.02
    assert source.sample() == []
    nvml.now_s = 0.5
    assert source.sample()[0].window_s == 0.5


def test_the_ring_is_averaged_over_what_is_new() -> None:
    """Samples of before, also those that lay there at the beginning, do not count again."""
    gpu = Gpu(ring=[(100, 90), (200, 90)])
    nvml = Nvml(gpu)
    source = opened(nvml)
    gpu.ring += [(300, 10), (400, 30)]
    nvml.now_s = 1.0
    (reading,) = source.sample()
    assert (reading.utilization, reading.source, reading.sm_active) == (pytest.approx(0.2), "nvml", None)


def test_without_a_new_sample_the_last_figure_counts() -> None:
    """The driver's own rate stands in where its ring has nothing new, and where it keeps none."""
    for gpu in (Gpu(rate=75), Gpu(rate=75, has_ring=False)):
        nvml = Nvml(gpu)
        source = opened(nvml)
        nvml.now_s = 1.0
        assert source.sample()[0].utilization == 0.75


def test_memory_is_what_the_driver_says() -> None:
    """Bytes in use and bytes there are."""
    nvml = Nvml(Gpu(used=3 * 2**30, total=80 * 2**30))
    reading = opened(nvml).sample()[0]
    assert (reading.memory_bytes, reading.memory_total_bytes, reading.pool) == (3 * 2**30, 80 * 2**30, None)


@pytest.mark.parametrize(
    ("visible", "rates"),
    [("2,0", [0.3, 0.1]), ("GPU-c", [0.3]), ("1,7,0", [0.2]), ("0, 1", [0.1, 0.2])],
)
def test_numbers_are_those_that_the_run_sees(
    visible: str, rates: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuda:0 is the first of CUDA_VISIBLE_DEVICES, by number or by the start of its id, up to a bad entry."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = Nvml(
        *(Gpu(uuid=f"GPU-{letter}f", rate=rate) for letter, rate in (("a", 10), ("b", 20), ("c", 30)))
    )
    readings = opened(nvml).sample()
    assert [reading.device for reading in readings] == [f"cuda:{n}" for n in range(len(rates))]
    assert [reading.utilization for reading in readings] == rates


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_not_measured(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no GPU visible there is nothing to measure, and the driver is left again."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = Nvml(Gpu())
    with pytest.raises(SourceAbsent):
        opened(nvml)
    assert nvml.opened == 0


@pytest.mark.parametrize(
    ("visible", "says"), [("MIG-1", "MIG"), ("GPU-x", "GPU-x, which NVML does not know")]
)
def test_what_cannot_be_measured_is_a_failure(
    visible: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice of a GPU, or one that is not there, is said in one line, and the driver is left again."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = Nvml(Gpu())
    with pytest.raises(SourceFailed, match=says):
        opened(nvml)
    assert nvml.opened == 0

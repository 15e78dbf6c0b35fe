"""Where tensors can live, and a weights file that cannot be written."""

import re

import pytest
import torch

from eventrain.adapters.torch.weights import WeightsNotWritten, resolve_device, write_weights


def test_a_device_that_is_there_is_found():
    """A CPU always is, and 'auto' names one that is."""
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("banana", "'banana' is no device: expected 'auto', 'cpu', 'cuda', 'cuda:1', ..."),
        ("", "'' is no device"),
        ("cpu:x", "'cpu:x' is no device"),
        ("meta", "'meta' is no device"),
        ("cuda:99", "'cuda:99': "),
        ("cpu:99", "'cpu:99': the cpu devices of this machine are 0 to 0"),
    ],
)
def test_a_device_that_is_not_there_is_said_in_one_line(device, message):
    """A word that is no device, and a device that this machine lacks, are refused before anything is loaded."""
    with pytest.raises(ValueError, match="^" + re.escape(message)) as caught:
        resolve_device(device)
    assert "\n" not in str(caught.value)


def test_weights_that_cannot_be_written_name_their_file_and_leave_nothing(tmp_path):
    """Whichever part of writing fails, the error names the file, and no half of it keeps room on a full disk."""
    model = torch.nn.Linear(2, 2)
    missing = tmp_path / "missing" / "weights.safetensors"
    with pytest.raises(WeightsNotWritten, match=f"^{re.escape(str(missing))} could not be written: "):
        write_weights(model, missing, durable=False)
    in_the_way = tmp_path / "weights.safetensors"
    in_the_way.mkdir()
    with pytest.raises(WeightsNotWritten, match=f"^{re.escape(str(in_the_way))} could not be written: "):
        write_weights(model, in_the_way, durable=True)
    assert list(tmp_path.iterdir()) == [in_the_way]

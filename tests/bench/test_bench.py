import json

import pytest
import torch
from click.testing import CliRunner

from ressmooth.bench import timing
from ressmooth.bench.training import literal_loss, measure_loss
from ressmooth.cli import main
from ressmooth.smoothing import Constant, SmoothingLoss


def test_the_papers_layer_gives_the_same_loss_as_ours():
    logits, target = torch.randn(5, 7, dtype=torch.float64), torch.arange(5)
    ours = SmoothingLoss(Constant(0.5))(logits, target, 0.5)
    assert torch.allclose(ours, literal_loss(logits, target, 0.5, 1.0), rtol=1e-12)


def test_a_row_holds_on_the_right_side_of_its_limit():
    row = timing.Row("G", "what", ratio=2.0, low=1.0, high=3.0, must=2.5, at_most=True)
    assert row.holds
    assert not timing.Row("G", "what", 2.0, 1.0, 3.0, must=2.5, at_most=False).holds


def test_a_ratio_is_the_median_of_its_rounds_per_part(monkeypatch):
    bench = timing.Bench(quick=True, device="cpu")
    bench.rounds = 3
    clock = iter([8, 2, 2, 8, 12, 2, 2, 12, 10, 2, 2, 10])  # A B B A, three times
    monkeypatch.setattr(bench, "_calls", lambda work: 1)
    monkeypatch.setattr(bench, "seconds", lambda work, calls: next(clock))
    bench.compare("G", "four, six and five times", list, list, must=3, parts=2)
    (row,) = bench.rows
    assert (row.low, row.ratio, row.high) == (2.0, 2.5, 3.0)


def test_the_table_and_the_json_have_the_same_numbers():
    bench = timing.Bench(quick=True, device="cpu")
    measure_loss(bench)
    rows = json.loads(timing.as_json(bench.rows))["rows"]
    assert [row["goal"] for row in rows] == ["G1"] * 4
    table = timing.as_table(bench.rows)
    assert all(f"{row['ratio']:.3g}" in table for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_its_benchmark_says_so():
    result = CliRunner().invoke(main, ["bench", "--device", "cuda"])
    assert result.exit_code == 2
    assert "device = 'cuda': torch sees no GPU here; use 'auto' or 'cpu'" in result.stderr


def test_the_table_names_the_gpu(monkeypatch):
    name = "NVIDIA A100"
    monkeypatch.setattr(timing, "find_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(timing, "describe", lambda _: {"driver": "580", "TF32": "off"})
    assert f"GPU {name}, driver 580, TF32 off" in timing.as_table([], "cuda")

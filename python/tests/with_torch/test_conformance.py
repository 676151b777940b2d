"""The conformance check, and that it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from peakledger import conformance

pytestmark = pytest.mark.torch


def test_the_installed_torch_conforms() -> None:
    run = subprocess.run([sys.executable, "-m", "peakledger.conformance"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert f"torch {torch.__version__}" in run.stdout
    assert run.stdout.count("ok    ") == 4 and "the tensor has 65536 bytes" in run.stdout


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main(["--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["passed"] and answer["tensor_bytes"] == 65_536 <= answer["profiled_bytes"]


def test_a_profiler_that_sees_no_memory_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def blind(**options: Any) -> Any:
        return torch.profiler.profile(**{**options, "profile_memory": False})

    monkeypatch.setattr(conformance, "profile", blind)
    assert conformance.main([]) == 1
    out = capsys.readouterr().out
    assert "FAILED  memory_reported" in out and "ok      phases_in_order" in out


def test_a_missing_phase_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "record_function", lambda name: torch.profiler.record_function(f"my {name}"))
    assert conformance.check().checks["phases_in_order"] is False


def test_a_ledger_that_counts_the_cpu_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "summarize_phase_memory", lambda states: [{"total_mb": states[0]["size_mb"]}])
    assert conformance.check().checks["cpu_not_in_gpu_totals"] is False


def test_other_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main(["--fast"]) == 2
    assert capsys.readouterr().err == "error: --fast: not an option\n  help: --json is the only one\n"

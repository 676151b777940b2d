"""Ledgers, plans and what fits: the same JSON as the command line, byte for byte, and the objects over it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import peakledger as pl

REPOSITORY = Path(__file__).resolve().parents[2]
# all but the config of a model are ledgers
EXAMPLES = sorted(set((REPOSITORY / "examples").glob("*.json")) - {REPOSITORY / "examples/config.json"})

PLANS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("llama-3.2-1b", {}, []),
    ("gpt2", {"batch": 4, "seq": 512, "step": "first"}, ["--batch", "4", "--seq", "512", "--step", "first"]),
    (
        "qwen2.5-0.5b",
        {"precision": "bf16", "gradient_checkpointing": True, "clip_grad_norm": True, "hold_outputs": True},
        ["--precision", "bf16", "--gradient-checkpointing", "--clip-grad-norm", "--hold-outputs"],
    ),
    (
        "llama-3.2-1b",
        {
            "lora": {"r": 16, "dropout": 0.05, "targets": ["q_proj", "v_proj"]},
            "offload": ["activations", "optimizer"],
            "gpu": "t4",
            "expand_kv": False,
            "seq_len": None,
        },
        ["--lora", "r=16,dropout=0.05,targets=q_proj+v_proj", "--offload", "activations,optimizer", "--gpu", "t4"],
    ),
    (
        "gpt2",
        {
            "optimizer": "sgd",
            "momentum": 0.9,
            "candidate": {"all": "--recompute full", "two": {"recompute": "every:2"}},
        },
        [
            *["--optimizer", "sgd", "--momentum", "0.9"],
            *("--candidate", "all: --recompute full", "--candidate", "two: --recompute every:2"),
        ],
    ),
    ("gpt2", {"candidates": "common", "gpu": "80GiB"}, ["--candidates", "common", "--gpu", "80GiB"]),
]


@pytest.mark.parametrize(("model", "options", "words"), PLANS)
def test_a_plan_is_the_command_lines(
    model: str, options: dict[str, Any], words: list[str], command_line: Callable[..., str], tmp_path: Path
) -> None:
    planned = pl.plan(model, **options)
    assert planned.to_json() == command_line("plan", model, *words, "--format", "json")
    file = tmp_path / "table.txt"
    command_line("plan", model, *words, "-o", str(file))
    assert str(planned) == file.read_text(encoding="utf-8")
    planned.save(tmp_path / "ours.json")
    command_line("plan", model, *words, "--save", str(tmp_path / "theirs.json"))
    assert (tmp_path / "ours.json").read_bytes() == (tmp_path / "theirs.json").read_bytes()


def test_a_training_config_is_the_command_lines(command_line: Callable[..., str], tmp_path: Path) -> None:
    config = tmp_path / "axolotl.yaml"
    config.write_text("base_model: gpt2\nmicro_batch_size: 2\ngradient_accumulation_steps: 1\nsequence_len: 256\n")
    words = ["--from", str(config), "--optimizer", "sgd"]
    said = command_line("plan", *words, "--format", "json").replace(" --format json", "")  # of the command it repeats
    assert pl.plan(from_=config, optimizer="sgd").to_json() == said
    words += ["--from-kind", "axolotl"]
    said = command_line("plan", "distilgpt2", *words, "--format", "json").replace(" --format json", "")
    assert pl.plan("distilgpt2", from_=[str(config)], from_kind="axolotl", optimizer="sgd").to_json() == said


def test_what_fits_is_the_command_lines(command_line: Callable[..., str]) -> None:
    found = pl.fit("qwen2.5-0.5b", gpu="rtx-3060", seq_len=4096)
    assert found.to_json() == command_line(
        "fit", "qwen2.5-0.5b", "--gpu", "rtx-3060", "--seq", "4096", "--format", "json"
    )
    assert found.rows[0]["name"] == "as given" and found.fits == found.rows[0]["fits"]


def test_a_search_is_the_command_lines(command_line: Callable[..., str]) -> None:
    among = {"tp": [1, 2], "offload": ["none", ["activations", "optimizer"]], "expand_kv": [True, False]}
    found = pl.fit("qwen2.5-0.5b", gpu="rtx-3060", gpus=2, among=among, global_batch_size=4)
    words = ["--among", "tp=1,2", "--among", "offload=none|activations,optimizer", "--among", "expand-kv=true,false"]
    assert found.to_json() == command_line(
        "fit",
        "qwen2.5-0.5b",
        "--gpu",
        "rtx-3060",
        "--gpus",
        "2",
        *words,
        "--global-batch-size",
        "4",
        "--format",
        "json",
    )
    assert found.to_dict()["tried"] == 8 and len(found.rows) == found.to_dict()["possible"]


def test_lists_are_the_command_lines(command_line: Callable[..., str]) -> None:
    for what, listed in (("models", pl.list_models()), ("gpus", pl.list_gpus()), ("families", pl.list_families())):
        assert listed == json.loads(command_line("list", what, "--format", "json"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_ledger_is_the_command_lines(example: Path, command_line: Callable[..., str]) -> None:
    shown = command_line("show", str(example), "--format", "json")
    held = json.loads(example.read_text(encoding="utf-8"))
    for source in (str(example), example, held, pl.Ledger(example).to_document()):
        assert pl.Ledger(source).to_json() == shown


def test_a_comparison_is_the_command_lines(command_line: Callable[..., str], tmp_path: Path) -> None:
    base, other = (str(REPOSITORY / "examples" / name) for name in ("step.json", "checkpoint.json"))
    compared = pl.Ledger(base).compare(checkpoint=pl.Ledger(other))
    assert compared.to_json() == command_line("compare", base, f"checkpoint={other}", "--format", "json")
    assert compared.candidates["checkpoint"]["memory_saving_bytes"] > 0
    assert compared.baseline == pl.Ledger(base).peak
    with pytest.raises(pl.PeakledgerError, match="no candidates"):
        pl.Ledger(base).compare()
    inside = {**pl.Ledger(base).to_document(), "candidates": {"x": pl.Ledger(other).to_document()["states"]}}
    document = pl.Ledger(inside)
    assert document.compare(y=pl.Ledger(other)).candidates.keys() == {"x", "y"}
    with pytest.raises(pl.PeakledgerError, match="two candidates are named `x`"):
        document.compare({"x": pl.Ledger(other)})


def test_a_replay_is_the_command_lines(command_line: Callable[..., str], tmp_path: Path) -> None:
    planned = pl.plan("gpt2", batch=2)
    planned.save(tmp_path / "plan.json")
    conf = {"expandable_segments": True}
    said = command_line(
        "replay", str(tmp_path / "plan.json"), "--alloc-conf", "expandable_segments:True", "--format", "json"
    )
    assert pl.replay(tmp_path / "plan.json", alloc_conf=conf).to_json() == said
    assert pl.replay(planned).to_dict()


def test_a_reconciliation_and_a_diff_are_the_command_lines(command_line: Callable[..., str], tmp_path: Path) -> None:
    planned, other = pl.plan("gpt2"), pl.plan("gpt2", optimizer_impl="fused")
    plan, measured = tmp_path / "plan.json", tmp_path / "measured.json"
    planned.save(plan)
    other.save(measured)
    words = ["--plan", str(plan), "--measured", str(measured), "--tolerance", "1%", "--format", "json"]
    held = pl.reconcile(plan, measured, tolerance="1%")
    assert held.to_json() == command_line("reconcile", *words, code=1) and held.agrees is False
    assert pl.reconcile(planned, planned, tolerance="0.01%").agrees is True
    assert held.remainder[0]["name"] == "predicted" and len(held.phases) == 6
    grown = pl.diff(plan, measured)
    assert grown.to_json() == command_line("diff", str(plan), str(measured), "--format", "json")
    assert grown.groups and not pl.diff(planned, plan).groups
    with pytest.raises(pl.PeakledgerError, match="no ledger"):
        pl.diff(plan, 3)  # type: ignore[arg-type]


def test_a_snapshot_is_the_command_lines(command_line: Callable[..., str], shared: Path, tmp_path: Path) -> None:
    snapshots = sorted((shared / "data" / "snapshots").glob("*.pickle*"), key=lambda path: path.stat().st_size)
    assert snapshots
    for snapshot in snapshots[:8]:
        read = pl.read(snapshot)
        assert read.to_json() == command_line("read", str(snapshot), "--format", "json")
        assert [device["device"] for device in read.devices] == sorted(device["device"] for device in read.devices)
    with pytest.raises(pl.PeakledgerError, match="no such file"):
        pl.read(tmp_path / "nothing.pickle")


def test_a_config_may_be_a_dict_or_an_object() -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
    }

    class Config:
        def to_dict(self) -> dict[str, Any]:
            return config

    of_dict, of_object = pl.plan(config), pl.plan(Config())
    assert of_dict.to_json() == of_object.to_json() and str(of_dict) == str(of_object)
    with pytest.raises(TypeError, match="not of type int"):
        pl.plan(3)  # type: ignore[arg-type]
    with pytest.raises(pl.PeakledgerError, match="standard input"):
        pl.plan("-")


def test_a_plan_as_an_object() -> None:
    planned = pl.plan("gpt2", gpu="t4", candidate={"recompute": {"recompute": "full"}})
    assert planned.fits is True and planned.verdict is not None and planned.verdict["gpu"]
    assert planned.peak["bytes"] == max(phase["peak_bytes"] for phase in planned.phases)
    assert sum(planned.peak["by_category"].values()) == planned.peak["bytes"]
    assert planned.device_peak["bytes"] >= planned.peak["bytes"]
    assert planned.contributors[0]["bytes"] >= planned.contributors[-1]["bytes"]
    assert planned.candidates["recompute"]["memory_saving_bytes"] > 0
    assert planned.to_dict()["peak"] == planned.peak and planned.to_dict() is not planned.to_dict()
    assert repr(planned).startswith("<peakledger.Plan: peak ")
    assert planned.explain("gradient").to_dict()["bytes"] > 0
    ledger = planned.ledger()
    assert ledger.peak["peak_bytes"] == planned.device_peak["bytes"]
    assert pl.plan("gpt2").fits is None
    first = pl.plan("gpt2", gpu="t4", step="first")
    assert first.phases == planned.to_dict()["first_step"]["phases"]
    assert first.ledger().to_json() == planned.ledger("first").to_json()


def test_saving_does_not_overwrite(tmp_path: Path) -> None:
    for answer in (pl.plan("gpt2"), pl.Ledger([])):
        path = tmp_path / type(answer).__name__
        answer.save(path)
        with pytest.raises(pl.PeakledgerError, match="the file exists") as raised:
            answer.save(path)
        assert raised.value.file == str(path)
        assert raised.value.mend == "add `force=True` to overwrite it"
        answer.save(path, force=True)
        assert pl.Ledger(path).peak["peak_bytes"] >= 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Ledger", "Plan"]


def test_mends_are_in_the_words_of_a_call(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text('{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}', encoding="utf-8")
    with pytest.raises(pl.PeakledgerError) as raised:
        pl.plan(from_=config)
    assert raised.value.mend == (
        'name the model: `peakledger.plan(model, from_="FILE")`; say them: add `micro_batch_size` and `gpus=N` to the call'
    )
    with pytest.raises(pl.PeakledgerError) as raised:
        pl.plan("gpt2", force_=True)  # type: ignore[call-arg]
    assert raised.value.mend and "`force`" in raised.value.mend


def test_an_empty_ledger_is_one() -> None:
    empty = pl.Ledger([])
    assert len(empty) == 0 and empty and empty.peak["peak_phase"] == "load"
    states = json.loads((REPOSITORY / "examples/step.json").read_text(encoding="utf-8"))
    assert len(pl.Ledger(state for state in states)) == len(states) > 3


PROBLEMS: list[tuple[Callable[[], object], dict[str, str | None]]] = [
    (lambda: pl.plan("gpt2", seq_len=0), {"place": "seq_len", "file": None}),
    (lambda: pl.plan("gpt2", seq_lenn=1), {"place": "seq_lenn", "mend": "`seq_len`"}),  # type: ignore[call-arg]
    (lambda: pl.plan("gpt2", optimizer="adamv"), {"place": "optimizer", "mend": "`adamw`"}),  # type: ignore[arg-type]
    (lambda: pl.plan("gpt2", batch=True), {"place": "micro_batch_size", "cause": "missing"}),
    (lambda: pl.plan("gpt2", candidate="x"), {"place": "candidate", "mend": 'candidate="recompute: --recompute full"'}),
    (lambda: pl.plan("gpt2", lora=["r"]), {"place": "lora", "cause": "list"}),  # type: ignore[arg-type]
    (lambda: pl.plan("gpt2", format="json"), {"place": "format", "mend": "to_json"}),  # type: ignore[call-arg]
    (lambda: pl.plan("gpt2", gpu="h10"), {"place": "gpu", "mend": "`peakledger.list_gpus()`"}),
    (lambda: pl.plan("gpt2", lora=8), {"place": "lora", "mend": '`lora={"r": 8}`'}),  # type: ignore[arg-type]
    (lambda: pl.plan("gpt2", lora=True), {"place": "lora", "mend": '`lora={"r": 16}`'}),  # type: ignore[arg-type]
    (lambda: pl.plan("gpt2", bf16=True), {"place": "bf16", "mend": '`precision="bf16-mixed"`'}),  # type: ignore[call-arg]
    (lambda: pl.plan("gpt2", qlora=True), {"place": "qlora", "mend": '`lora={"r": 16}, quantize="nf4"`'}),  # type: ignore[call-arg]
    (lambda: pl.plan("gpt2", **{"from": "ds.json"}), {"place": "from", "mend": "`from_=`"}),
    (lambda: pl.plan("gpt2", from_="-"), {"cause": "standard input"}),
    (lambda: pl.fit("gpt2"), {"place": "gpu", "cause": "no"}),
    (lambda: pl.plan("no-such-model"), {"place": None, "cause": "`no-such-model` is not known"}),
    (lambda: pl.plan({"model_type": "nobody"}), {"file": "config", "place": "/model_type"}),
    (lambda: pl.plan("gpt2").explain("nobody"), {"cause": "nobody"}),
    (lambda: pl.Ledger([{"name": "x"}]), {"file": "ledger", "place": "/0"}),
    (lambda: pl.Ledger([{"name": float("nan")}]), {"file": "ledger"}),
    (lambda: pl.Ledger("no/such.json"), {"file": "no/such.json", "mend": ""}),
]


@pytest.mark.parametrize(("ask", "said"), PROBLEMS, ids=range(len(PROBLEMS)))
def test_a_problem_says_where_why_and_what_to_do(ask: Callable[[], object], said: dict[str, str | None]) -> None:
    with pytest.raises(pl.PeakledgerError) as raised:
        ask()
    error = raised.value
    assert isinstance(error, ValueError) and error.cause in str(error)
    for part, wanted in said.items():
        found = getattr(error, part)
        exact = part in ("place", "file") or wanted is None
        assert found == wanted if exact else wanted in found, f"{part}: {found!r}"
    assert error.mend and f"\n  help: {error.mend}" in str(error)
    said_of_python = str(error).replace("recompute: --recompute full", "")
    assert "--" not in said_of_python and "peakledger list" not in said_of_python, str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_names_do_not_act_in_a_notebook() -> None:
    hostile = "<script>alert(1)</script>"
    states = [
        {
            "name": hostile,
            "category": "gradient",
            "size_mb": 1,
            "start_phase": "load",
            "end_phase": "loss",
            "device": "gpu",
            "persistent": False,
        }
    ]
    ledger = pl.Ledger(states)
    for shown in (ledger._repr_html_(), ledger.compare(x=ledger)._repr_html_(), pl.plan("gpt2")._repr_html_()):
        assert "<script" not in shown
        assert "<table" in shown or "<pre" in shown
    assert "&lt;script&gt;" in ledger._repr_html_() and "1.00 MiB" in ledger._repr_html_()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames(library: Any) -> None:
    pytest.importorskip(library, reason=f"SKIPPED: {library} is not installed")
    planned = pl.plan("gpt2", gpu="t4")
    frame = planned.to_dataframe(library)
    assert type(frame).__module__.startswith(library) and len(frame) == 12
    row = frame.to_dict("records")[-1] if library == "pandas" else frame.row(-1, named=True)
    last = planned.phases[-1]
    assert row["step"] == "steady" and row["peak_bytes"] == last["peak_bytes"]
    assert row["parameter_bytes"] == last["by_category"]["parameter"]
    ledger = planned.ledger()
    for answer in (ledger, ledger.compare(same=ledger), pl.fit("gpt2", gpu="t4")):
        assert len(answer.to_dataframe(library)) > 1
    with pytest.raises(ValueError, match="backend 'numpy'"):
        planned.to_dataframe("numpy")  # type: ignore[arg-type]


def test_without_a_library_there_is_no_data_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        pl.Ledger([]).to_dataframe()

"""What the package promises of itself: its options are the command line's, its stubs are true, its examples run, and long
work keeps neither other threads nor Ctrl-C waiting."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
import textwrap
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

import peakledger
from peakledger._words import ELSEWHERE

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = Path(peakledger.__file__).parent

# a step of so many micro-batches that planning it takes seconds
LONG = "peakledger.plan('gpt2', gradient_accumulation_steps=1300{})"


def python(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **more},
    )


def test_importing_needs_neither_torch_nor_numpy() -> None:
    ran = python(
        """
        import sys
        before = set(sys.modules)
        sys.modules.update(dict.fromkeys(["torch", "numpy", "pandas", "polars"]))
        import peakledger
        assert peakledger.plan("gpt2").peak["bytes"] > 0
        print(peakledger.__version__)
        """
    )
    assert ran.returncode == 0 and ran.stdout.strip().count(".") == 2, ran.stderr


def test_what_needs_torch_says_so() -> None:
    ran = python(
        """
        import sys
        sys.modules["torch"] = None
        import peakledger
        try:
            peakledger.trace
        except ModuleNotFoundError as error:
            print(error)
        """
    )
    assert "`peakledger.trace` needs torch, which is not installed here: `pip install torch`" in ran.stdout, ran.stderr


def test_dir_lists_what_is_meant_to_be_used() -> None:
    names = {name for name in dir(peakledger) if not name.startswith("__")}
    assert names == {*peakledger.__all__, "trace", "record", "PeakLedgerCallback"} - {"__version__"}


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("plan", "PlanOptions"),
        ("fit", "FitOptions"),
        ("read", "ReadOptions"),
        ("replay", "ReplayOptions"),
        ("reconcile", "ReconcileOptions"),
    ],
)
def test_options_are_those_of_the_command_line(verb: str, options: str, command_line: Callable[..., str]) -> None:
    """Every option has its type here, and the words that it may have."""
    values: dict[str, set[str]] = {}
    help_ = command_line(verb, "-h")
    for name, said in re.findall(r"^ +(?:-\w, )?--([a-z-]+)(.*(?:\n {10}.*)?)", help_, re.MULTILINE):
        listed = re.search(r"\[possible values: (.*?)\]", said)
        for word in [name, *re.findall(r"\[alias: --([a-z-]+)\]", said)]:
            values[word.replace("-", "_")] = set(listed[1].split(", ")) if listed else set()
    typed = typing.get_type_hints(getattr(peakledger, options))
    arguments = {"plan", "measured"} if verb == "reconcile" else set()
    if "from" in values:  # a word of Python's own
        values["from_"] = values.pop("from")
    assert set(typed) == set(values) - set(ELSEWHERE) - arguments
    for name, kind in typed.items():
        kinds = typing.get_args(kind) if typing.get_origin(kind) is not typing.Literal else (kind,)
        words = {word for one in kinds for word in typing.get_args(one) if typing.get_origin(one) is typing.Literal}
        assert bool in (kind, *kinds) or words == values[name], name


def test_other_threads_run_while_a_plan_is_made() -> None:
    ran = python(
        f"""
        import threading, peakledger
        ticks, done = 0, threading.Event()
        def tick():
            global ticks
            while not done.wait(0.005):
                ticks += 1
        threading.Thread(target=tick, daemon=True).start()
        before = ticks
        {LONG.format("")}
        print(ticks - before)
        done.set()
        """
    )
    assert ran.returncode == 0 and int(ran.stdout) > 20, ran.stdout + ran.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="SKIPPED: signals are those of Unix")
def test_control_c_is_heeded() -> None:
    ran = python(
        f"""
        import os, signal, threading, time, peakledger
        pressed = []
        def press():
            time.sleep(0.2)
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=press, daemon=True).start()
        try:
            {LONG.format(", candidate=['c%d: --recompute full' % i for i in range(60)]")}
        except KeyboardInterrupt:
            print(time.monotonic() - pressed[0])
        """
    )
    assert ran.returncode == 0 and float(ran.stdout) < 2.0, ran.stdout + ran.stderr


def test_the_package_is_the_command_line_too() -> None:
    for command in ([sys.executable, "-m", "peakledger"], [str(Path(sys.executable).with_name("peakledger"))]):
        ran = subprocess.run([*command, "list", "families"], capture_output=True, text=True, check=False)
        assert ran.returncode == 0 and "llama" in ran.stdout, ran.stderr
        ran = subprocess.run([*command, "plan", "no-such"], capture_output=True, text=True, check=False)
        assert ran.returncode == 2 and ran.stderr.startswith("error: "), ran.stderr


def test_types_are_checked(tmp_path: Path) -> None:
    mypy = [sys.executable, "-m", "mypy", "--config-file", str(REPOSITORY / "pyproject.toml")]
    ran = subprocess.run(
        [*mypy, "--cache-dir", str(tmp_path), str(REPOSITORY / "python" / "peakledger")],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_stubs_are_true(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "peakledger._native"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_everything_public_is_documented() -> None:
    for name in peakledger.__all__:
        thing = getattr(peakledger, name)
        if name in ("__version__", "PHASES", "VALID_CATEGORIES"):
            continue
        assert thing.__doc__, name
        if callable(thing) and not isinstance(thing, type) and not name.startswith("list_"):
            assert "Raises:" in thing.__doc__, name


@pytest.mark.parametrize("module", ["", "_ledger", "_plan"])
def test_examples_in_docstrings(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"peakledger.{module}".rstrip(".")))
    assert tried > 0 and failed == 0


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_examples_in_the_readmes(readme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    text = (REPOSITORY / readme).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks, readme
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for number, block in enumerate(blocks):
        test = doctest.DocTestParser().get_doctest(block, names, f"{readme} block {number}", readme, 0)
        assert test.examples, f"{readme} block {number} has no >>>"
        assert runner.run(test, clear_globs=False).failed == 0, f"{readme} block {number}"
        names = test.globs

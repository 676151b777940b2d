"""Options of Python as words of the command line, which has the one table of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from ._errors import no_standard_input, option_error

Dtype = Literal["fp32", "bf16", "fp16"]
OwnDtype = Literal["fp32", "bf16", "fp16", "none"]


class StepOptions(TypedDict, total=False):
    """How a step is run: the command line's options with underscores; ``peakledger plan --help`` explains each.

    Sizes are counts: sequences, tokens, micro-batches. What is left out has the command line's default.
    """

    micro_batch_size: int
    """Sequences in a micro-batch (1); also ``batch``."""
    batch: int
    seq_len: int
    """Tokens in a sequence (2048, or the model's limit if smaller); also ``seq``."""
    seq: int
    gradient_accumulation_steps: int
    """Micro-batches in a step (1)."""
    precision: Literal["fp32", "bf16", "fp16", "bf16-mixed", "fp16-mixed"]
    """Types of weights and compute (``bf16-mixed``)."""
    weights_dtype: OwnDtype
    optimizer: Literal["adamw", "adamw-8bit", "adamw-32bit", "sgd", "adafactor", "lion", "muon"]
    """The optimizer (``adamw``)."""
    optimizer_impl: Literal["foreach", "fused", "forloop"]
    momentum: float
    attention: Literal["sdpa", "eager"]
    attention_mask: Literal["none", "padded"]
    expand_kv: bool
    experts: Literal["grouped_mm", "eager"]
    expert_imbalance: float
    """The load of the busiest expert over the mean (1)."""
    recompute: str
    """``none``, ``full``, ``every:N``, ``layers:0-11+20``, ``block:N`` or ``selective`` (``none``)."""
    gradient_checkpointing: bool
    """The same as ``recompute="full"``."""
    offload: str | Sequence[str]
    """``activations``, ``optimizer``, ``parameters``, or several of them."""
    offload_layers: str
    """The layers whose activations are offloaded: ``0-11+20`` (all)."""
    offload_prefetch: int
    grad_dtype: OwnDtype
    master_weights: OwnDtype
    freeze: str | Sequence[str]
    """Names of modules, of a list of layers some with a range: ``["model.embed_tokens", "model.layers.0-15"]``."""
    lora: str | Mapping[str, Any]
    """``"r=16,targets=q_proj+v_proj"`` or ``{"r": 16, "targets": ["q_proj", "v_proj"]}``."""
    quantize: Literal["nf4", "nf4-double", "int8", "none"]
    prepare_for_kbit: bool
    clip_grad_norm: bool
    loss_in_model: bool
    fused_loss: bool
    hold_outputs: bool | Literal["no", "backward", "step"]
    gpus: int
    """All GPUs (the product of the parallel sizes)."""
    dp: int
    zero: int | Literal["0", "1", "2", "3"]
    """DeepSpeed's ZeRO stage (0)."""
    zero_reduce_bucket_size: int
    zero_overlap_comm: bool
    zero_prefetch_bucket_size: int
    zero_max_live_parameters: int
    zero_param_persistence_threshold: int
    zero_sub_group_size: int
    fsdp: Literal["none", "full_shard", "shard_grad_op", "hybrid_shard"]
    fsdp_wrap: Literal["accelerate", "accelerate-1.13", "verl", "layers"]
    """Who wraps the model by FSDP2 (``accelerate``, since 1.14): what beside the layers is gathered by itself."""
    reduce_dtype: OwnDtype
    sync_each_batch: bool
    ddp_bucket_view: bool
    tp: int
    sp: bool
    loss_parallel: bool
    """Whether logits stay split by vocabulary over the tensor parallel ranks, and the loss takes them so."""
    pp: int
    """Stages of layers (1)."""
    schedule: Literal["1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "dualpipe"]
    """In which order a stage runs its micro-batches (``1f1b``)."""
    virtual_stages: int
    decoder_first_pipeline_num_layers: int
    decoder_last_pipeline_num_layers: int
    cp: int
    cp_rotate_method: Literal["allgather", "alltoall"]
    cp_load_balance: bool
    cp_comm_type: Literal["p2p", "a2a"]
    ep: int
    etp: int
    gpus_per_node: int
    dp_shard_size: int
    network_gbps_per_gpu: float
    nccl_bytes_per_group: str
    """What the communicator of a process group takes of a card: ``512MiB``."""
    stack: Literal["transformers", "megatron"]
    gpu: str
    """A card of ``list_gpus()``, or an amount such as ``80GiB``."""
    alloc_conf: str | Mapping[str, Any]
    """Settings of the caching allocator, as ``PYTORCH_CUDA_ALLOC_CONF`` has them or as a dict."""
    candidate: str | Sequence[str] | Mapping[str, str | Mapping[str, Any]]
    """Other ways to run it: ``{"recompute": {"recompute": "full"}}``, or as the command line has them."""
    from_: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    """Training configs to take the options from, later ones over earlier ones; options given here win."""
    from_kind: Literal[
        "deepspeed", "training-arguments", "accelerate", "axolotl", "llama-factory", "torchtitan", "megatron", "peft"
    ]
    """Whose config it is, where its keys do not tell."""


class PlanOptions(StepOptions, total=False):
    """Options of :func:`peakledger.plan`."""

    candidates: Literal["common"]
    """Compare with the usual changes too."""
    step: Literal["first", "steady", "both"]
    """The steps to show (``both``)."""
    rank: int | str
    """The rank whose plan is shown, ``worst`` or ``all`` (``worst``)."""


class FitOptions(StepOptions, total=False):
    """Options of :func:`peakledger.fit`."""

    offload_min_saving: int
    """An offload that saves a smaller share of the device peak is rejected, in per cent (5)."""
    offload_max_time: int
    """An offload whose copies take a larger share of the step's theoretical time is to be tuned, in per cent (20)."""
    search: bool
    """Try every combination of the usual values of what is not said, at the same number of sequences in a step."""
    among: str | Sequence[str] | Mapping[str, Sequence[Any]]
    """Values to try in every combination: ``{"tp": [1, 2, 4, 8]}``, or as the command line has them."""
    global_batch_size: int
    """Sequences of a step in every combination (as many as the step has as it is given)."""


class ReadOptions(TypedDict, total=False):
    """Options of :func:`peakledger.read`."""

    device: int
    """This device alone."""
    at: int
    """The live set just after this event, not at the peak; -1 is before the first."""
    events: str
    """Look for peaks among these events alone: ``1000..2000``."""
    salvage: bool
    """Answer from the sound part of a damaged file."""
    phase: Mapping[str, str] | Sequence[str]
    """Ranges of the program that are phases of the ledger: ``{"my pass": "backward"}``."""
    oom_message: bool
    """The file is a text with an out-of-memory message in it."""


class ReplayOptions(TypedDict, total=False):
    """Options of :func:`peakledger.replay`."""

    alloc_conf: str | Mapping[str, Any]
    """The settings to try, as ``PYTORCH_CUDA_ALLOC_CONF`` has them or as a dict; several usual ones if left out."""
    gpu: str
    """The card to run on."""
    device: int
    """The device of the snapshot (that with the most reserved bytes)."""


class ReconcileOptions(TypedDict, total=False):
    """Options of :func:`peakledger.reconcile`."""

    measured_step: int
    """The step of the measurement, counted from 0; the last if left out."""
    tolerance: str
    """How far off a phase may be: ``1%``, ``24MiB``, or ``1%,24MiB`` for whichever is more."""
    gpu: str
    """The card, for what lies outside the allocator."""


# What the command line does with an answer is done to the object that Python gets.
ELSEWHERE = {
    "format": "the answer has `to_json()`, `to_dict()`, `to_dataframe()` and `str()`",
    "output": "write `answer.to_json()` to a file",
    "force": "it belongs to `save(path, force=True)`",
    "save": "call `save(path)` on the plan",
    "explain": "call `explain(state)` on the plan",
    "from": "write it `from_=`, since `from` is a word of Python's own",
    "print_options": "`peakledger plan --from FILE --print-options` prints them",
    **dict.fromkeys(
        (
            "post_training",
            "prompt_len",
            "response_len",
            "group_size",
            "beta",
            "rollout_engine",
            "rollout_sequences",
            "vllm_gpu_memory_utilization",
            "vllm_enable_sleep_mode",
            "vllm_tensor_parallel_size",
            "reward_model",
            "reference_dtype",
            "precompute_ref_log_probs",
            "offload_between",
        ),
        "`peakledger plan --post-training … --save FILE` writes a ledger: `Ledger(FILE)`",
    ),
    "exit_code": "look at the plan's `fits`",
    "plot": "it belongs to the command line's tables",
    "ascii": "it belongs to the command line's tables",
    "all": "the answer has all entries of every list",
    "top": "the answer has all entries of every list",
    "help": "`help(peakledger.plan)` and `peakledger plan --help` say more",
    "version": "it is `peakledger.__version__`",
}

# What joins several values of one option.
_JOINED_BY = {"offload": ",", "freeze": "+", "targets": "+"}


def words_of(options: Mapping[str, Any]) -> list[str]:
    """The options as words: ``seq_len=4096`` is ``--seq-len=4096``; None is left out, and so is False."""
    words: list[str] = []
    for name, value in options.items():
        if name in ELSEWHERE:
            raise option_error(name, "it is an option of the command line alone", ELSEWHERE[name])
        if name == "candidate":
            words += [f"--candidate={text}" for text in _candidates(value)]
        elif name == "from_":
            files = [value] if isinstance(value, str | os.PathLike) else value or []
            words += [f"--from={no_standard_input(os.fspath(file))}" for file in files]
        elif name == "among":
            words += [f"--among={text}" for text in _among(value)]
        elif name == "phase" and isinstance(value, Mapping):
            words += [f"--phase={one}={phase}" for one, phase in value.items()]
        elif name == "phase" and not isinstance(value, str):
            words += [f"--phase={one}" for one in value or []]
        else:
            words += _words(name, value)
    return words


def _words(name: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if name == "lora" and isinstance(value, int | float):
        rank = 16 if value is True else value
        raise option_error(name, f"{value!r} says no rank", f'write `lora={{"r": {rank}}}`')
    option = "--" + name.replace("_", "-")
    return [option] if value is True else [f"{option}={_text(name, value)}"]


def _text(name: str, value: Any) -> str:
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, Mapping):
        equals = ":" if name == "alloc_conf" else "="
        return ",".join(f"{key}{equals}{_text(key, one)}" for key, one in value.items())
    if isinstance(value, Sequence) and name in _JOINED_BY:
        return _JOINED_BY[name].join(str(one) for one in value)
    raise option_error(name, f"a value of type {type(value).__name__} is none of its values", "pass a number or a str")


def _among(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [f"{name.replace('_', '-')}={_listed(name, values)}" for name, values in value.items()]
    return [str(one) for one in value]


def _listed(name: str, values: Sequence[Any]) -> str:
    texts = [str(one).lower() if isinstance(one, bool) else _text(name, one) for one in values]
    return ("|" if any("," in text for text in texts) else ",").join(texts)


def _candidates(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [f"{name}: {one if isinstance(one, str) else ' '.join(words_of(one))}" for name, one in value.items()]
    return [str(one) for one in value]

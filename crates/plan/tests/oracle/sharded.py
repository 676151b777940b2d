"""Steps of one rank of a model that is split or shared out, under torch's own trackers, with no GPU and no other rank.

    pip install torch==2.15.0 transformers==5.24.0 accelerate==1.15.0 peft
    python sharded.py < jobs.jsonl > rows.jsonl
    python sharded.py < ../data/sharded.jsonl | diff - ../data/sharded.jsonl

A line of input is a job or a row of a table, which is made again; a line of output is its row: each phase's largest total and
the total when it ends. `card.py` says what stands for the card, `split.py` how a model is split over ranks. Process groups are
torch's fake ones, whose collectives do nothing. Memory is handed out and let go of by the loop's thread, which is the same with
streams and without: what streams change is which block can be used again when, and no total of what is allocated.

A job: {"id", "config": {…}, "batch", "seq", "dtype": "bfloat16"|"float16"|"float32", "attn": "sdpa"|"eager",
  "sdpa_kernel": "efficient" (a card without flash), "checkpoint", "accum", "clip", "lora": {…},
  "optimizer": "adamw"|"adamw_fused"|"adamw_forloop"|"sgd"|"sgd_momentum", "world", "rank",
  "strategy": "full_shard"|"shard_grad_op"|"hybrid_shard"|"ddp", "hosts" (of hybrid_shard),
  "wrap": who wraps the model, "layers" (each, then the model)|"accelerate"|"accelerate-1.13"|"verl",
  "loss_in_model": whether the model computes the loss, as it does for `Trainer`,
  "mixed": the type that fp32 parameters are gathered in, "reduce_dtype", "sync_each_batch", "bucket_view",
  "tp": tensor parallel ranks of the world's, "sp": with the sequence, "ep": ranks that experts are spread over,
  "received": the rows that this rank's experts receive, "loss_parallel": whether tp's logits stay split,
  "cp": context parallel ranks of the world's, "rotate": "allgather"|"alltoall" (both in `context.py`),
  "pp": stages of a pipeline, of one of which this is a rank (what else they are told is in `pipeline.py`)}
Without a strategy, a rank of tp or ep alone: "precision": "pure"|"autocast" (`CARD=cuda`)|"fp32", "drop_logits" (the loop
lets go of the output before backward, as it does with a strategy), "ops": the log of the steady step comes with the row.
"""

import contextlib
import gc
import json
import multiprocessing
import sys

import context
import pipeline
import split
import torch
import torch.distributed as dist
from accelerate.utils.fsdp_utils import _find_final_norm
from card import CARD, KERNEL, STEPPING, Log, Phases, summed
from jobs import DTYPES, OPTIMIZERS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import mem_tracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import fsdp
from transformers.distributed.utils import TransformersDeviceMesh


def is_split(job):
    return job.get("tp", 1) * job.get("ep", 1) > 1


def built(job, meshes):
    """The model, split, and how transformers itself would share it out."""
    config = AutoConfig.for_model(**job["config"])
    config.use_cache = False
    in_fp32 = job.get("mixed") or job.get("precision") in ("autocast", "fp32")
    dtype = torch.float32 if in_fp32 else DTYPES[job["dtype"]]
    with torch.device(CARD):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=job.get("attn", "sdpa"), dtype=dtype).train()
    plans = split.split(model, job, *meshes) if is_split(job) else None
    if job.get("lora"):
        from peft import LoraConfig, get_peft_model

        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32 if job.get("lora_fp32", True) else dtype)
        to, torch.nn.Module.to = torch.nn.Module.to, lambda self, *a, **k: self
        with torch.device(CARD):
            lora = LoraConfig(task_type="CAUSAL_LM", **job["lora"])
            model = get_peft_model(model, lora, autocast_adapter_dtype=False)
        torch.nn.Module.to = to
        torch.set_default_dtype(default)
        if job.get("checkpoint"):
            model.enable_input_require_grads()
    if job.get("checkpoint"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, plans


def layers(model):
    lists = (m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    return next(m for m in lists if len(m) and "Layer" in type(m[0]).__name__ or "Block" in type(m[0]).__name__)


def mesh_of(job):
    if job.get("pp"):
        return (pipeline.mesh_of(job),)
    if job.get("cp"):
        return context.mesh_of(job, CARD), None
    if is_split(job):
        return split.meshes(job)
    if job["strategy"] != "hybrid_shard":
        return (init_device_mesh(CARD, (job["world"],)),)
    sizes = (job["hosts"], job["world"] // job["hosts"])
    return (init_device_mesh(CARD, sizes, mesh_dim_names=("replicate", "shard")),)


def shards_of(job, mesh):
    if job.get("cp"):
        return mesh["replicate", "fsdp"] if job["strategy"] == "hybrid_shard" else mesh["fsdp"]
    return mesh["fsdp"] if is_split(job) else mesh


def sharded(model, job, meshes, plans):
    """Every decoder layer, what else is wrapped by itself, then the model around them. Experts that are spread are shared out
    by transformers alone, over the ranks that have the same ones."""
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[job.get("mixed")], reduce_dtype=DTYPES[job.get("reduce_dtype")])
    if job.get("ep", 1) > 1:
        fsdp._get_fsdp_policy_kwargs = lambda _: {"mp_policy": policy}
        return fsdp.apply_fully_sharded_data_parallelism(model, TransformersDeviceMesh(*meshes), *plans)
    options = {"mesh": shards_of(job, meshes[0]), "mp_policy": policy}
    if job["strategy"] == "shard_grad_op":
        options["reshard_after_forward"] = False
    for layer in layers(model):
        fully_shard(layer, **options)
    around(model, job.get("wrap", "layers"), options)
    return fully_shard(model, **options)


def around(model, wrap, options):
    """What is in no layer: as `fsdp2_prepare_model` of accelerate 1.15 has it, or 1.13, or verl's `apply_fsdp2`."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = embedding.weight is head.weight
    reshards = {"reshard_after_forward": True, **options}
    if wrap in ("accelerate", "verl") and not is_tied:
        fully_shard(embedding, **reshards)
    if wrap == "accelerate":
        tail = (_find_final_norm(model), embedding if is_tied else None, head)
        fully_shard([module for module in tail if module is not None], **{**options, "reshard_after_forward": False})
    if wrap in ("accelerate-1.13", "verl"):
        options.update(reshards)  # the model itself is told too


def run(job):
    KERNEL[0] = job.get("sdpa_kernel")
    autocast = job.get("precision") == "autocast"
    assert not autocast or CARD == "cuda", "autocast casts other ops on a processor: CARD=cuda"
    world = job.get("world") or max(job.get("tp", 1), job.get("ep", 1))
    dist.init_process_group("fake", rank=job.get("rank", 0), world_size=world, store=FakeStore())
    try:
        meshes = mesh_of(job)
        if job.get("strategy") == "ddp":  # its reducer looks at data: real tensors, and attention that a processor can run
            return steps(job, meshes)
        with FakeTensorMode(allow_non_fake_inputs=True):
            steps(job, meshes)  # DTensor learns how its ops are sharded by running them whole once, also seen by a tracker
            gc.collect()
            return steps(job, meshes)
    finally:
        dist.destroy_process_group()


class Loss:
    """A loss that has its phase begin, whoever calls it."""

    def __init__(self, plain):
        self.plain, self.phases = plain, None

    def __call__(self, **given):
        self.phases()
        return self.plain(**given)


def steps(job, meshes):
    STEPPING.clear()
    if job.get("pp"):
        return pipeline.steps(job, *meshes, lambda: built(job, ())[0])
    strategy = job.get("strategy")
    model, plans = built(job, meshes)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    parameters = sum(p.numel() for p in model.parameters())
    inner = model
    if strategy == "ddp":
        tracker = mem_tracker.MemTracker()
        with tracker:  # its buckets are made here
            model = DistributedDataParallel(inner, gradient_as_bucket_view=job.get("bucket_view", False))
        model.register_comm_hook(None, summed)
    elif strategy:
        inner = model = sharded(model, job, meshes, plans)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": group} for group in split.by_mesh(trained)] if is_split(job) else trained
    stepper = OPTIMIZERS[job.get("optimizer", "adamw")](groups)
    # FSDPMemTracker has the same totals but where modules are sharded together, whose hooks it takes apart
    tracker = tracker if strategy == "ddp" else mem_tracker.MemTracker()
    tracker.track_external(model, stepper)
    STEPPING.append(stepper)
    accum, vocabulary = job.get("accum", 1), inner.config.get_text_config().vocab_size
    tokens = {"size": (job["batch"], job["seq"]), "dtype": torch.long, "device": CARD}
    batches = [(torch.zeros(**tokens), torch.zeros(**tokens)) for _ in range(accum)]  # ids and labels
    step_of = context.parallel(job, inner, meshes[0])
    base = inner.get_base_model() if job.get("lora") else inner
    loss_of = base.loss_function = Loss(base.loss_function)
    autocast = {"dtype": DTYPES[job["dtype"]], "enabled": job.get("precision") == "autocast"}
    result, log = {}, None
    gc.disable()
    for step in ("first_step", "steady_step"):
        log = Log(tracker) if job.get("ops") and step == "steady_step" else None
        phases = Phases(tracker, log)
        for tokens in (tokens for batch in batches for tokens in batch):
            tokens.resize_(job["batch"], job["seq"])  # a new batch in the memory of the last, which may have been cut
        with tracker, log or contextlib.nullcontext():
            for i, batch in enumerate(batches):
                silent = i + 1 < accum and not job.get("sync_each_batch")
                if strategy and strategy != "ddp":
                    model.set_requires_gradient_sync(not silent)
                waits = model.no_sync() if silent and strategy == "ddp" else contextlib.nullcontext()
                with waits, step_of(*batch) as (inputs, labels):
                    with torch.autocast(CARD, **autocast), contextlib.ExitStack() as phase:
                        phase.enter_context(phases(f"forward.{i}"))
                        loss_of.phases = lambda i=i, phase=phase: (phase.close(), phase.enter_context(phases(f"loss.{i}")))
                        if job.get("loss_in_model"):
                            out = model(**inputs, **labels)
                            loss = out.loss
                        else:
                            out = model(**inputs)
                            loss = loss_of(logits=out.logits, vocab_size=vocabulary, **labels)
                        loss = loss / accum if accum > 1 else loss
                        if strategy or job.get("drop_logits"):
                            out = None
                    with phases(f"backward.{i}"):
                        loss.backward()
                    del out, loss
                inputs = labels = None
                tracker.reset_mod_stats()
            with phases("clip"):
                if job.get("clip"):
                    split.clip(trained, job["clip"])
            with phases("update"):
                stepper.step()
            with phases("zero_grad"):
                stepper.zero_grad()
            tracker.reset_mod_stats()
        result[step] = phases.rows
    gc.enable()
    return {"params": parameters, "trainable": trainable, **result, **({"ops": log.rows} if log else {})}


def row(line):
    """A job's row, or a row made again."""
    given = json.loads(line)
    job = given.get("job", given)
    return {"id": given["id"], "job": job, **run(job)}


if __name__ == "__main__":
    # each in a process of its own: DTensor remembers process groups of meshes that look alike
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as rows:
        for made in rows.imap(row, filter(str.strip, sys.stdin)):
            print(json.dumps(made, separators=(",", ":")), flush=True)

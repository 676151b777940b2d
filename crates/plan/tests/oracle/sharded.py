"""Steps of sharded training under torch's own trackers, with no GPU and no other rank.

    pip install torch==2.15.0 transformers==5.24.0 peft
    python sharded.py < jobs.jsonl > rows.jsonl

A line of input is a job, a line of output its row, as in ../data/sharded.jsonl: each phase's largest total and the total
when it ends. Tensors are fake (`FakeTensorMode`) and lie on "cpu", which stands for the card; process groups are torch's
fake ones, whose collectives do nothing. What differs on a card is answered here: storages are rounded up to 512 B,
attention is the flash kernel, foreach is said aloud. Memory is handed out and let go of by the loop's thread, which is the
same with streams and without: what streams change is which block can be used again when, and no total of what is allocated.

A job: {"id", "config": {…}, "batch", "seq", "dtype": "bfloat16"|"float32",
  "strategy": "full_shard"|"shard_grad_op"|"hybrid_shard"|"ddp", "world", "rank", "hosts" (of hybrid_shard),
  "mixed": the type that fp32 parameters are gathered in, "reduce_dtype", "optimizer": "adamw"|"adamw_fused"|"adamw_forloop"|
  "sgd"|"sgd_momentum", "attn": "sdpa"|"eager", "checkpoint", "accum", "sync_each_batch", "clip", "lora": {…}, "bucket_view"}
"""

import contextlib
import gc
import json
import math
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import fake_collectives  # noqa: F401  (gives collectives their meta kernels)
from torch.distributed._tools import fsdp2_mem_tracker, mem_tracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

transformers.logging.set_verbosity_error()
# this reads the data, finds one sequence a row and returns None; fake tensors have no data to read
transformers.masking_utils.find_packed_sequence_indices = lambda position_ids: None

CARD = "cpu"


def rounded(info):
    return math.ceil(info.size * info.element_size / 512) * 512


mem_tracker._WeakRefInfo._calculate_mem_consumed = rounded


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """What a card runs: flash for half types, else the memory-efficient kernel over repeated heads."""
    if q.dtype is not torch.float32:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
    if k.size(1) != q.size(1):
        k, v = (x.repeat_interleave(q.size(1) // k.size(1), 1) for x in (k, v))
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]


F.scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention = attention


class Nothing:
    def remove(self):
        pass


# the trackers hook every parameter; a frozen one has no gradient to hook
for hook in ("register_hook", "register_post_accumulate_grad_hook"):
    original = getattr(torch.Tensor, hook)

    def on_trained(self, act, original=original):
        return original(self, act) if self.requires_grad else Nothing()

    setattr(torch.Tensor, hook, on_trained)


def total_only(tracker, _state):
    for device, held in tracker._curr_mem_snap.items():
        if tracker._peak_mem.get(device, 0) < held["Total"]:
            tracker._peak_mem[device] = held["Total"]


for tracker in (mem_tracker.MemTracker, fsdp2_mem_tracker.FSDPMemTracker):
    tracker._update_peak_stats = total_only

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, None: None}


def optimizer(name, parameters):
    of = {
        "adamw": lambda: torch.optim.AdamW(parameters, foreach=True),
        "adamw_fused": lambda: torch.optim.AdamW(parameters, fused=True),
        "adamw_forloop": lambda: torch.optim.AdamW(parameters, foreach=False),
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-3, foreach=True),
        "sgd_momentum": lambda: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True),
    }
    return of[name]()


class Phases:
    """Each phase's largest total and the total when it ends."""

    def __init__(self, tracker, stepper):
        self.tracker, self.stepper, self.rows = tracker, stepper, []

    def on_card(self, totals):
        """Without the step counts of an optimizer that keeps them on the host."""
        states = [] if self.stepper.defaults.get("fused") else self.stepper.state.values()
        return sum(totals) - 512 * sum("step" in state for state in states)

    @contextlib.contextmanager
    def __call__(self, name):
        self.tracker._peak_mem = {d: held["Total"] for d, held in self.tracker._curr_mem_snap.items()}
        yield
        now = (held["Total"] for held in self.tracker._curr_mem_snap.values())
        self.rows.append([name, self.on_card(self.tracker._peak_mem.values()), self.on_card(now)])


def built(job):
    config = AutoConfig.for_model(**job["config"])
    config.use_cache = False
    dtype = torch.float32 if job.get("mixed") else DTYPES[job["dtype"]]
    with torch.device(CARD):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=job.get("attn", "sdpa"), dtype=dtype).train()
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
    return model


def layers(model):
    lists = (m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    return next(m for m in lists if len(m) and "Layer" in type(m[0]).__name__ or "Block" in type(m[0]).__name__)


def mesh_of(job):
    if job["strategy"] != "hybrid_shard":
        return init_device_mesh(CARD, (job["world"],))
    sizes = (job["hosts"], job["world"] // job["hosts"])
    return init_device_mesh(CARD, sizes, mesh_dim_names=("replicate", "shard"))


def sharded(model, job, mesh):
    """As accelerate and torchtitan do: every decoder layer, then the model around them."""
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[job.get("mixed")], reduce_dtype=DTYPES[job.get("reduce_dtype")])
    options = {"mesh": mesh, "mp_policy": policy}
    if job["strategy"] == "shard_grad_op":
        options["reshard_after_forward"] = False
    for layer in layers(model):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def summed(_state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def run(job):
    dist.init_process_group("fake", rank=job.get("rank", 0), world_size=job["world"], store=FakeStore())
    try:
        mesh = mesh_of(job)
        if job["strategy"] == "ddp":  # its reducer looks at data: real tensors, and attention that a processor can run
            return steps(job, mesh)
        with FakeTensorMode(allow_non_fake_inputs=True):
            steps(job, mesh)  # DTensor learns how its ops are sharded by running them whole once, also seen by a tracker
            gc.collect()
            return steps(job, mesh)
    finally:
        dist.destroy_process_group()


def steps(job, mesh):
    model = built(job)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    parameters = sum(p.numel() for p in model.parameters())
    inner = model
    if job["strategy"] == "ddp":
        tracker = mem_tracker.MemTracker()
        with tracker:  # its buckets are made here
            model = DistributedDataParallel(inner, gradient_as_bucket_view=job.get("bucket_view", False))
        model.register_comm_hook(None, summed)  # torch's fake group leaves no result
    else:
        inner = model = sharded(model, job, mesh)
    trained = [p for p in model.parameters() if p.requires_grad]
    stepper = optimizer(job.get("optimizer", "adamw"), trained)
    if job["strategy"] == "ddp":
        tracker.track_external(model, stepper)
    else:
        tracker = fsdp2_mem_tracker.FSDPMemTracker(model, stepper)
    accum, vocabulary = job.get("accum", 1), inner.config.get_text_config().vocab_size
    batches = [torch.zeros(job["batch"], job["seq"], dtype=torch.long, device=CARD) for _ in range(accum)]
    result = {}
    gc.disable()
    for step in ("first_step", "steady_step"):
        phases = Phases(tracker, stepper)
        with tracker:
            for i, batch in enumerate(batches):
                silent = i + 1 < accum and not job.get("sync_each_batch")
                if job["strategy"] != "ddp":
                    model.set_requires_gradient_sync(not silent)
                with model.no_sync() if silent and job["strategy"] == "ddp" else contextlib.nullcontext():
                    with phases(f"forward.{i}"):
                        out = model(input_ids=batch)
                    with phases(f"loss.{i}"):
                        loss = inner.loss_function(logits=out.logits, labels=batch, vocab_size=vocabulary)
                        loss = loss / accum if accum > 1 else loss
                        out = None
                    with phases(f"backward.{i}"):
                        loss.backward()
                    del loss
                tracker.reset_mod_stats()
            with phases("clip"):
                if job.get("clip"):
                    torch.nn.utils.clip_grad_norm_(trained, job["clip"])
            with phases("update"):
                stepper.step()
            with phases("zero_grad"):
                stepper.zero_grad()
            tracker.reset_mod_stats()
        result[step] = phases.rows
    gc.enable()
    return {"id": job["id"], "job": job, "params": parameters, "trainable": trainable, **result}


if __name__ == "__main__":
    for line in filter(str.strip, sys.stdin):
        print(json.dumps(run(json.loads(line)), separators=(",", ":")), flush=True)
        gc.collect()

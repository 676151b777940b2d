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
  "sgd"|"sgd_momentum", "attn": "sdpa"|"eager", "checkpoint", "accum", "sync_each_batch", "clip", "lora": {…}, "bucket_view",
  "tp": tensor parallel ranks by transformers' own plan, of the world's}
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
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools import fake_collectives  # noqa: F401  (gives collectives their meta kernels)
from torch.distributed._tools import fsdp2_mem_tracker, mem_tracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

transformers.logging.set_verbosity_error()
# this reads the data, finds one sequence a row and returns None; fake tensors have no data to read
transformers.masking_utils.find_packed_sequence_indices = lambda position_ids: None

CARD = "cpu"


def rounded(info):
    return math.ceil(info.size * info.element_size / 512) * 512


mem_tracker._WeakRefInfo._calculate_mem_consumed = rounded

joined = DeviceMesh._concatenate


def with_ranks(meshes):
    """A mesh of several dimensions looks up its own rank, which a fake tensor does not know."""
    with unset_fake_temporarily():
        return joined(meshes)


DeviceMesh._concatenate = staticmethod(with_ranks)


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


STEPPING = []  # the optimizer, once there is one


def on_card(tracker):
    """What is on the card: not what DTensors ask of the meta device, nor the step counts that an optimizer keeps on the host."""
    totals = (held["Total"] for device, held in tracker._curr_mem_snap.items() if device.type == CARD)
    on_host = (stepper for stepper in STEPPING if not stepper.defaults.get("fused"))
    return sum(totals) - 512 * sum("step" in state for stepper in on_host for state in stepper.state.values())


def total_only(tracker, _state):
    tracker.largest = max(getattr(tracker, "largest", 0), on_card(tracker))


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

    def __init__(self, tracker):
        self.tracker, self.rows = tracker, []

    @contextlib.contextmanager
    def __call__(self, name):
        self.tracker.largest = on_card(self.tracker)
        yield
        self.rows.append([name, self.tracker.largest, on_card(self.tracker)])


def built(job, mesh):
    config = AutoConfig.for_model(**job["config"])
    config.use_cache = False
    dtype = torch.float32 if job.get("mixed") else DTYPES[job["dtype"]]
    with torch.device(CARD):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=job.get("attn", "sdpa"), dtype=dtype).train()
    if job.get("tp"):
        split(model, mesh, job)
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


def split(model, mesh, job):
    """Transformers' own tensor parallel plan. Each local part lies in a storage of its own, as a loader leaves it."""
    model._device_mesh = mesh
    model.config.distributed_config = DistributedConfig(tp_size=job["tp"], fsdp_size=job["world"] // job["tp"])
    tied = model.config.tie_word_embeddings
    if tied:  # a plan is made before weights are tied
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    plan, _, _ = model._resolve_parallel_plans(model.config.distributed_config)
    apply_tensor_parallelism(model, mesh["tp"], plan)
    for module in model.modules():
        for name, whole in list(module._parameters.items()):
            if isinstance(whole, DTensor):
                own = torch.empty(whole._local_tensor.shape, dtype=whole.dtype, device=CARD)
                kind = {"run_check": False, "shape": whole.shape, "stride": whole.stride()}
                own = DTensor.from_local(own, whole.device_mesh, whole.placements, **kind)
                module._parameters[name] = torch.nn.Parameter(own, requires_grad=whole.requires_grad)
    if tied:
        model.tie_weights()


def by_mesh(parameters):
    """The groups of `Trainer.create_optimizer`."""
    groups = {}
    for parameter in parameters:
        groups.setdefault(parameter.device_mesh, []).append(parameter)
    return list(groups.values())


def clip(parameters, most):
    """`Trainer._mixed_mesh_grad_norm`, where there are several meshes."""
    groups = by_mesh(parameters) if all(isinstance(p, DTensor) for p in parameters) else [parameters]
    if len(groups) == 1:
        return torch.nn.utils.clip_grad_norm_(parameters, most)
    norms = [torch.nn.utils.get_total_norm([p.grad for p in group]).full_tensor() for group in groups]
    total = torch.linalg.vector_norm(torch.stack(norms))
    for group in groups:
        torch.nn.utils.clip_grads_with_norm_(group, most, total)


def mesh_of(job):
    if job.get("tp"):
        return init_device_mesh(CARD, (job["world"] // job["tp"], job["tp"]), mesh_dim_names=("fsdp", "tp"))
    if job["strategy"] != "hybrid_shard":
        return init_device_mesh(CARD, (job["world"],))
    sizes = (job["hosts"], job["world"] // job["hosts"])
    return init_device_mesh(CARD, sizes, mesh_dim_names=("replicate", "shard"))


def sharded(model, job, mesh):
    """As accelerate and torchtitan do: every decoder layer, then the model around them."""
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[job.get("mixed")], reduce_dtype=DTYPES[job.get("reduce_dtype")])
    options = {"mesh": mesh["fsdp"] if job.get("tp") else mesh, "mp_policy": policy}
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
    STEPPING.clear()
    model = built(job, mesh)
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
    groups = [{"params": group} for group in by_mesh(trained)] if job.get("tp") else trained
    stepper = optimizer(job.get("optimizer", "adamw"), groups)
    if job["strategy"] == "ddp":
        tracker.track_external(model, stepper)
    else:
        tracker = fsdp2_mem_tracker.FSDPMemTracker(model, stepper)
    STEPPING.append(stepper)
    accum, vocabulary = job.get("accum", 1), inner.config.get_text_config().vocab_size
    batches = [torch.zeros(job["batch"], job["seq"], dtype=torch.long, device=CARD) for _ in range(accum)]
    result = {}
    gc.disable()
    for step in ("first_step", "steady_step"):
        phases = Phases(tracker)
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
                    clip(trained, job["clip"])
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

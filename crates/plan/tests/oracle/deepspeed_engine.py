"""Steps that DeepSpeed's own engine runs under ZeRO, with no GPU and no other rank.

    pip install torch==2.15.0 transformers==5.24.0 accelerate wheel hjson msgpack ninja py-cpuinfo einops
    DS_BUILD_OPS=0 pip install --no-build-isolation --no-deps deepspeed==0.19.8
    python deepspeed_engine.py < jobs.jsonl > rows.jsonl

A line of input is a job, a line of output its row, as in ../data/deepspeed.jsonl: each phase's largest total on the card and
the total when it ends, then the same of the host. Tensors are fake (`FakeTensorMode`); the card is a device of Python's own
(torch's PrivateUse1), which autograd takes as it takes CUDA and the host stays apart from. DeepSpeed sees an accelerator that
answers as its CUDA one does: asynchronous, with streams and events (which do nothing: memory is handed out and let go of by
the loop's thread), 1 TiB free. Process groups are torch's fake ones. What differs on a card is answered here: attention is the
flash kernel, silu's backward is one kernel, a value that is read back is 1 (and no overflow is found).

The loop is that of transformers' `Trainer` over accelerate: the loss divided by the micro-batches,
`engine.backward(loss, scale_wrt_gas=False)`, and after the last `engine.step()`.

A job: {"id", "config": {…}, "batch", "seq", "dtype": "bfloat16"|"float16"|"float32", "world", "rank",
  "zero": {…} as `zero_optimization` has it, "deepspeed": {…} further sections of the config, "clip", "accum", "checkpoint",
  "optimizer": "adamw"|"adamw_fused"|"adamw_forloop"|"sgd"|"sgd_momentum", "attn": "sdpa"|"eager",
  "init": whether the model is made under `deepspeed.zero.Init`}

With OPS=FILE, the file gets the last job's ops: [phase, op, [[dtype, shape]…], bytes on the card after it, on the host].
"""

import contextlib
import gc
import json
import math
import os
import sys
import weakref

import kernels
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from jobs import DTYPES, OPTIMIZERS
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools import fake_collectives  # noqa: F401  (gives collectives their meta kernels)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import AutoConfig, AutoModelForCausalLM

transformers.logging.set_verbosity_error()
# this reads the data, finds one sequence a row and returns None; fake tensors have no data to read
transformers.masking_utils.find_packed_sequence_indices = lambda position_ids: None

_setup_privateuseone_for_python_backend("card")
CARD = torch.device("card", 0)
# what a checkpoint asks a device for
torch.card.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
torch.card.get_rng_state = lambda device=None: None
torch.card.set_rng_state = lambda state, device=None: None
torch.card.device = lambda index: contextlib.nullcontext()


def never(*args, **kwargs):
    raise AssertionError("fake tensors run no kernels")


# the ops for which CUDA has a kernel, and which are taken apart for a device that registers none
KERNELS = torch.library.Library("aten", "IMPL")
for op in ("silu_backward", "mish_backward", "_fused_rms_norm"):
    KERNELS.impl(op, never, "PrivateUse1")

made = torch.tensor


def tensor(data, *, device=None, **kwargs):
    """torch makes it with real kernels, of which the card has none: it is made on the host, and room for it on the card."""
    device = torch.get_default_device() if device is None else torch.device(device)
    on_host = made(data, device="cpu", **kwargs)
    return on_host if device.type == "cpu" else torch.empty(on_host.shape, dtype=on_host.dtype, device=device)


torch.tensor = tensor  # before DeepSpeed wraps it
os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0")

import deepspeed  # noqa: E402
from deepspeed.accelerator import set_accelerator  # noqa: E402
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # noqa: E402
from deepspeed.runtime.zero import utils as zero_utils  # noqa: E402


class Stream:
    def __init__(self, *_args, **_kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: True  # what is asked for has happened


def of(dtype):
    return property(lambda self: lambda data: torch.tensor(data, dtype=dtype, device=CARD))


class Card(CPU_Accelerator):
    """Answers as `deepspeed/accelerator/cuda_accelerator.py` does."""

    NOW = Stream()
    Stream = Event = property(lambda self: Stream)
    FloatTensor, ByteTensor, IntTensor = of(torch.float), of(torch.uint8), of(torch.int)

    def is_synchronized_device(self):
        return False

    def device_name(self, index=None):
        return "card" if index is None else f"card:{index}"

    def device(self, index=None):
        return torch.device("card", index)

    def current_device(self):
        return 0

    def current_device_name(self):
        return "card:0"

    def device_count(self):
        return 1

    def stream(self, _stream):
        return contextlib.nullcontext()

    def current_stream(self, _index=None):
        return self.NOW

    default_stream = current_stream

    def total_memory(self, _index=None):
        return 1 << 40

    available_memory = total_memory

    def memory_allocated(self, _index=None):
        return 0

    max_memory_allocated = memory_reserved = max_memory_reserved = memory_cached = max_memory_cached = memory_allocated

    def on_accelerator(self, tensor):
        return tensor.device.type == "card"

    def create_op_builder(self, name):
        return None if name == "ShareMemCommBuilder" else super().create_op_builder(name)


set_accelerator(Card())
FakeTensor.record_stream = lambda self, stream: None
torch.Tensor.item = lambda self: 0 if self.dtype in (torch.uint8, torch.bool) else 1.0
torch.Tensor.__bool__ = lambda self: False
torch.Tensor.__float__ = lambda self: 1.0

broadcast = zero_utils.get_lst_from_rank0


def same_as_rank0(ints):
    """Ranks compare traces of the modules, by tensors on the card."""
    broadcast(ints)
    return ints


zero_utils.get_lst_from_rank0 = same_as_rank0
zero_utils.assert_lst_len_same_as_other_ranks = lambda ints: None


def applied(module, fn, recurse=True):
    """Fake parameters cannot be swapped; whatever they are moved or cast to, they are there already."""
    for there in [*module.parameters(), *module.buffers()]:
        if (fn(there).device, fn(there).dtype) != (there.device, there.dtype):
            raise RuntimeError("a module is moved or cast")
    return module


torch.nn.Module._apply = applied


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    return kernels.attention(q, k, v, attn_mask, dropout_p, is_causal, scale)


F.scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention = attention


def blocks(storage):
    return math.ceil(storage.nbytes() / 512) * 512


class Storages(TorchDispatchMode):
    """What is live on the card and on the host after each op, in blocks of 512 bytes."""

    def __init__(self, log):
        super().__init__()
        self.log, self.phase, self.rows = log, "load", []
        self.live, self.total = {}, {"card": 0, "cpu": 0}
        self.largest = dict(self.total)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        outputs = [output for output in tree_leaves(result) if isinstance(output, torch.Tensor)]
        for output in outputs:
            if output.device.type in self.total:
                self.see(output.untyped_storage(), output.device.type)
        for device, total in self.total.items():
            self.largest[device] = max(self.largest[device], total)
        if self.log is not None and func is not torch.ops.prim.device.default:
            shapes = [[str(output.dtype)[6:], list(output.shape)] for output in outputs]
            self.log.append([self.phase, str(func).removeprefix("aten."), shapes, *self.total.values()])
        return result

    def see(self, storage, device):
        key, size = storage._cdata, blocks(storage)
        if key in self.live:
            return

        def gone(_):
            if self.live.pop(key, None) is not None:
                self.total[device] -= size

        self.live[key] = weakref.ref(storage, gone)
        self.total[device] += size

    def forget(self, batch, for_good):
        """A batch is there before the step. It counts once an op gives a view of it, as with torch's trackers; not under
        ZeRO 3, whose hooks give a view of whatever goes into a module."""
        storage = batch.untyped_storage()
        self.total["card"] -= blocks(storage)
        del self.live[storage._cdata]
        if for_good:
            self.live[storage._cdata] = storage

    @contextlib.contextmanager
    def during(self, phase):
        self.phase, self.largest = phase, dict(self.total)
        yield
        self.rows.append([phase, *(figures[d] for d in self.total for figures in (self.largest, self.total))])


def config_of(job):
    return {
        "train_micro_batch_size_per_gpu": job["batch"],
        "gradient_accumulation_steps": job.get("accum", 1),
        "gradient_clipping": job.get("clip", 0.0),
        "bf16": {"enabled": job["dtype"] == "bfloat16"},
        "fp16": {"enabled": job["dtype"] == "float16"},
        "zero_optimization": job["zero"],
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **job.get("deepspeed", {}),
    }


def run(job, log):
    dist.init_process_group("fake", rank=job.get("rank", 0), world_size=job["world"], store=FakeStore())
    with FakeTensorMode(allow_non_fake_inputs=True), Storages(log) as storages:
        return steps(job, storages)


def steps(job, storages):
    config = AutoConfig.for_model(**job["config"])
    config.use_cache = False
    asked = config_of(job)
    init = deepspeed.zero.Init(config_dict_or_path=asked) if job.get("init") else contextlib.nullcontext()
    with init, torch.device(CARD):
        attn = job.get("attn", "sdpa")
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attn, dtype=DTYPES[job["dtype"]]).train()
    if job.get("checkpoint"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    numbers = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    stepper = OPTIMIZERS[job.get("optimizer", "adamw")]([p for p in model.parameters() if p.requires_grad])
    engine, *_ = deepspeed.initialize(model=model, optimizer=stepper, config=asked)
    accum, vocabulary = job.get("accum", 1), config.get_text_config().vocab_size
    batches = [torch.zeros(job["batch"], job["seq"], dtype=torch.long, device=CARD) for _ in range(accum)]
    takes_a_view = config.model_type == "gpt2"  # by its own code
    for batch in batches:
        storages.forget(batch, for_good=job["zero"]["stage"] == 3 and not takes_a_view)
    result = {}
    gc.collect()
    gc.disable()
    for step in ("first_step", "steady_step"):
        storages.rows = result[step] = []
        for i, batch in enumerate(batches):
            with storages.during(f"forward.{i}"):
                out = engine(input_ids=batch)
            with storages.during(f"loss.{i}"):
                loss = model.loss_function(logits=out.logits, labels=batch, vocab_size=vocabulary)
                loss = loss / accum if accum > 1 else loss
                out = None
            with storages.during(f"backward.{i}"):
                engine.set_gradient_accumulation_boundary(i + 1 == accum)
                engine.backward(loss, scale_wrt_gas=False)
            del loss
        with storages.during("update"):
            engine.step()
        with storages.during("zero_grad"):
            pass  # the engine's step did that
    return {"id": job["id"], "job": job, "params": numbers, **result}


if __name__ == "__main__":
    for line in filter(str.strip, sys.stdin):
        if os.fork() == 0:  # DeepSpeed keeps its groups for the life of a process
            log = [] if "OPS" in os.environ else None
            given = json.loads(line)  # a job, or a row made again
            row = run(given.get("job", given), log)
            if log is not None:
                with open(os.environ["OPS"], "w") as file:
                    json.dump(log, file)
            print(json.dumps(row, separators=(",", ":")), flush=True)
            os._exit(0)
        os.wait()

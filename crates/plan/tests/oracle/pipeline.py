"""A rank of a pipeline over ranks that share its stage out by FSDP2, as torch's own schedules run it (`torch.distributed.pipelining`).

A stage is cut out of transformers' model as torchtitan cuts one: its layers, before the first the embedding, after the last the
norm and the head; each layer is wrapped, then the stage around them, or what `sharded.py` calls "accelerate". What goes between stages is known beforehand, since torch's
fake process group brings nothing. A phase lasts from the asking for what it receives to that of the next. Of what a stage receives
for forward, the tracker never sees one tensor a micro-batch go: rows that are compared are those of first stages.

Beside what `sharded.py` says of a job: "pp", "schedule": "gpipe"|"1f1b"|"interleaved", "parts" of a stage.
"""

import gc

import torch
from card import CARD, STEPPING, on_card
from jobs import DTYPES, OPTIMIZERS
from torch.distributed._tools import mem_tracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, schedules

first_call = mem_tracker.MemTracker._pre_fw_hook


def each_call(tracker, module, inputs):
    """The tracker's figures of a module are of one call; a stage is called again before its backward."""
    if not tracker._mod_tracker.is_bw:
        tracker.memory_tracking.pop(module, None)
    first_call(tracker, module, inputs)


mem_tracker.MemTracker._pre_fw_hook = each_call

# there is no other rank; the works of torch's fake group would hold what is sent for good
schedules._batch_p2p = lambda *_, **__: []

# whether a stage lets go of what it has sent is asked of the tensor's class, and fake ones have another
PipelineStage._output_slot_is_releasable = lambda stage, _output: (not stage.is_last, "")

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Part(torch.nn.Module):
    """Layers in a row, and what of the model stands around them."""

    def __init__(self, whole, number, parts):
        super().__init__()
        layers = whole.model.layers
        each = len(layers) // parts
        whole.model.layers = layers[number * each : (number + 1) * each]
        if number > 0:
            whole.model.embed_tokens = None
        if number < parts - 1:
            whole.model.norm = torch.nn.Identity()
        self.model, self.lm_head = whole.model, whole.lm_head if number == parts - 1 else None

    def forward(self, given):
        name = "inputs_embeds" if self.model.embed_tokens is None else "input_ids"
        hidden_states = self.model(**{name: given}).last_hidden_state
        return hidden_states if self.lm_head is None else self.lm_head(hidden_states)


def wrapped(part, job, mesh):
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[job.get("mixed")], reduce_dtype=DTYPES[job.get("reduce_dtype")])
    options = {"mesh": mesh, "mp_policy": policy}
    if job["strategy"] == "shard_grad_op":
        options["reshard_after_forward"] = False
    for layer in part.model.layers:
        fully_shard(layer, **options)
    if job.get("wrap") == "accelerate":  # torchtitan, as accelerate
        if part.model.embed_tokens is not None:
            fully_shard(part.model.embed_tokens, **options)
        if part.lm_head is not None:
            fully_shard([part.model.norm, part.lm_head], **{**options, "reshard_after_forward": False})
    return fully_shard(part, **options)


class Turns:
    """Each phase's largest total and the total when the next begins."""

    def __init__(self, tracker):
        self.tracker, self.phase, self.rows = tracker, None, []

    def __call__(self, phase):
        gc.collect()  # fake tensors and the hooks of the tracker leave cycles, one with what a backward began with
        if self.phase:
            self.rows.append([self.phase, self.tracker.largest, on_card(self.tracker)])
        self.tracker.largest, self.phase = on_card(self.tracker), phase


def said(stage, part, schedule, turns):
    """Has a stage and its schedule say where they are."""
    suffix = f"_part_{part}" if part else ""

    def before(owner, method, name):
        original = getattr(owner, method)

        def called(*args, **kwargs):
            phase = name(*args)
            if phase:
                turns[-1](phase)
            return original(*args, **kwargs)

        setattr(owner, method, called)

    by_itself = part is None
    methods = ("get_fwd_recv_ops", "get_bwd_recv_ops") if by_itself else ("forward_one_chunk", "backward_one_chunk")
    before(stage, methods[0], lambda i, *_: f"forward{suffix}.{i}")
    before(stage, methods[1], lambda i, *_: f"backward{suffix}.{i}")
    if stage.is_last:
        before(schedule, "_maybe_compute_loss", lambda of, _o, _t, i, *_: f"loss.{i}" if of is stage else None)


def mesh_of(job):
    return init_device_mesh(CARD, (job["pp"], job["world"] // job["pp"]), mesh_dim_names=("pp", "fsdp"))


def steps(job, mesh, build):
    """`build` makes transformers' whole model."""
    stages, parts_of_stage = job["pp"], job.get("parts", 1)
    stage, parts, micro_batches = mesh["pp"].get_local_rank(), stages * parts_of_stage, job["accum"]
    numbers = [stage + round_ * stages for round_ in range(parts_of_stage)]
    models = [wrapped(Part(build(), number, parts), job, mesh["fsdp"]) for number in numbers]
    gc.collect()
    config = models[0].model.config
    dtype = DTYPES[job.get("mixed") or job["dtype"]]
    sizes = (job["batch"], job["seq"])
    between = torch.empty(*sizes, config.hidden_size, dtype=dtype, device="meta", requires_grad=True)
    logits = torch.empty(*sizes, config.vocab_size, dtype=dtype, device="meta", requires_grad=True)
    tokens = torch.empty(*sizes, dtype=torch.long, device="meta")

    def staged(model, number):
        given = tokens if number == 0 else between
        made = logits if number == parts - 1 else between
        return PipelineStage(model, number, parts, torch.device(CARD), given, made, group=mesh["pp"].get_group())

    def loss_of(output, labels):
        from transformers.loss.loss_utils import ForCausalLMLoss

        return ForCausalLMLoss(logits=output, labels=labels, vocab_size=config.vocab_size)

    pipelined = [staged(model, number) for model, number in zip(models, numbers)]
    if job["schedule"] == "interleaved":
        schedule = ScheduleInterleaved1F1B(pipelined, micro_batches, loss_fn=loss_of)
    else:
        schedule = SCHEDULES[job["schedule"]](pipelined[0], micro_batches, loss_fn=loss_of)
    turns = []
    for part, one in enumerate(pipelined):
        said(one, part if parts_of_stage > 1 else None, schedule, turns)
    trained = [p for model in models for p in model.parameters() if p.requires_grad]
    stepper = OPTIMIZERS[job.get("optimizer", "adamw")](trained)
    tracker = mem_tracker.MemTracker()
    tracker.track_external(*models, stepper)
    STEPPING.append(stepper)
    inputs = [torch.zeros(*sizes, dtype=torch.long, device=CARD) for _ in range(2 * micro_batches)]
    given = [(one,) if numbers[0] == 0 else () for one in inputs[:micro_batches]]
    result = {}
    gc.disable()
    for step in ("first_step", "steady_step"):
        turns.append(Turns(tracker))
        with tracker:
            schedule.step(
                arg_mbs=given,
                kwarg_mbs=[{} for _ in given],
                target_mbs=inputs[micro_batches:] if numbers[-1] == parts - 1 else None,
                return_outputs=False,
            )
            turns[-1]("update")
            stepper.step()
            turns[-1]("zero_grad")
            stepper.zero_grad()
            turns[-1](None)
            tracker.reset_mod_stats()
        result[step] = turns[-1].rows
    gc.enable()
    numels = [sum(p.numel() for p in model.parameters()) for model in models]
    return {"params": sum(numels), **result}

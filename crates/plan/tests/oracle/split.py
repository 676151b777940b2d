"""Models split over ranks: by transformers' own tensor and expert parallel plans, or by torch's sequence parallel styles.

Ranks of a dense layer are pp × dp_replicate × fsdp × tp, those of its experts pp × dp_replicate × efsdp × ep
(`TransformersDeviceMesh`); a fake process group has one of them. Optimizer and clipping are by mesh, as `Trainer` has them.
"""

import context
import torch
from card import CARD
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.distributed.expert_parallel import apply_expert_parallelism
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

joined = DeviceMesh._concatenate


def with_ranks(meshes):
    """A mesh of several dimensions looks up its own rank, which a fake tensor does not know."""
    with unset_fake_temporarily():
        return joined(meshes)


DeviceMesh._concatenate = staticmethod(with_ranks)


def sizes(job):
    """As transformers is told them."""
    tp, ep, world = job.get("tp", 1), job.get("ep", 1), job.get("world") or max(job.get("tp", 1), job.get("ep", 1))
    hosts = job.get("hosts", 1)
    return DistributedConfig(tp_size=tp, ep_size=ep, dp_replicate_size=hosts, fsdp_size=world // tp // hosts)


def meshes(job):
    """The ranks as dense layers have them, and as experts do."""
    of, names = sizes(job), ("pp", "dp_replicate")
    dense = init_device_mesh(
        CARD, (1, of.dp_replicate_size, of.fsdp_size, of.tp_size), mesh_dim_names=(*names, "fsdp", "tp")
    )
    if of.ep_size == 1:
        return dense, None
    experts = (1, of.dp_replicate_size, of.efsdp_size, of.ep_size)
    return dense, init_device_mesh(CARD, experts, mesh_dim_names=(*names, "efsdp", "ep"))


def split(model, job, dense, experts):
    """Splits a model as the job says, and gives the plan by which it is sharded. Each local part lies in a storage of its
    own, as a loader leaves it."""
    if job.get("sp"):
        by_sequence(model, job, dense["tp"])
        own_storages(model)
        if model.config.tie_word_embeddings:
            model.lm_head.weight = model.model.embed_tokens.weight
        return {}, {}
    model._device_mesh, model.config.distributed_config = dense, sizes(job)
    tied = model.config.tie_word_embeddings
    if tied:  # a plan is made before weights are tied
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    of_tp, of_ep, of_fsdp = model._resolve_parallel_plans(model.config.distributed_config)
    if job.get("loss_parallel"):
        of_tp = of_tp | {"lm_head": context.SHARDED_LOGITS}
    if of_tp:
        apply_tensor_parallelism(model, dense["tp"], of_tp)
    if of_ep:
        apply_expert_parallelism(model, experts["ep"], dense["tp"], of_ep)
        send_rows(job)
    if tied:
        model.tie_weights()
    own_storages(model)
    if tied:
        model.tie_weights()
    return of_fsdp, of_ep


def own_storages(model):
    for module in model.modules():
        for name, whole in list(module._parameters.items()):
            if isinstance(whole, DTensor):
                own = torch.empty(whole._local_tensor.shape, dtype=whole.dtype, device=CARD)
                kind = {"run_check": False, "shape": whole.shape, "stride": whole.stride()}
                own = DTensor.from_local(own, whole.device_mesh, whole.placements, **kind)
                module._parameters[name] = torch.nn.Parameter(own, requires_grad=whole.requires_grad)


def by_sequence(model, job, mesh):
    """The plan of torchtitan's `parallelize_llama`, without its loss parallel."""
    plan = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    gathered = PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
    )
    for layer in model.model.layers:
        plan = {
            "input_layernorm": SequenceParallel(),
            "self_attn": gathered,
            **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
            "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
            "post_attention_layernorm": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh, plan)
    # positions are the batch's: a layer sees a part of the sequence and would count from its start
    forward, batches = model.forward, job.get("accum", 1)
    positions = [torch.arange(job["seq"], device=CARD).unsqueeze(0) for _ in range(batches)]
    calls = iter(positions * 2)
    model.forward = lambda input_ids: forward(input_ids=input_ids, position_ids=next(calls))


def send_rows(job):
    """The rows that an all-to-all sends and receives are data: even ones, or as many received as the job says."""
    tolist = FakeTensor.__dict__.get("tolist", torch.Tensor.tolist)
    of = sizes(job)
    sent = -(-job["batch"] * job["seq"] // of.tp_size) * job["config"]["num_experts_per_tok"]

    def share(rows):
        return [rows // of.ep_size + (i < rows % of.ep_size) for i in range(of.ep_size)]

    def rows(tensor):
        is_sizes = tensor.dim() == 2 and tensor.shape[0] == 2
        return [share(sent), share(job.get("received", sent))] if is_sizes else tolist(tensor)

    FakeTensor.tolist = rows


def mesh_of(tensor):
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def by_mesh(parameters):
    """The groups of `Trainer.create_optimizer`."""
    groups = {}
    for parameter in parameters:
        groups.setdefault(mesh_of(parameter), []).append(parameter)
    return list(groups.values())


def clip(parameters, most):
    """`Trainer._mixed_mesh_grad_norm`, where there are several meshes."""
    groups = by_mesh(parameters)
    if len(groups) == 1:
        return torch.nn.utils.clip_grad_norm_(parameters, most)
    norms = [torch.nn.utils.get_total_norm([p.grad for p in group]) for group in groups]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(norms))
    for group in groups:
        torch.nn.utils.clip_grads_with_norm_(group, most, total)

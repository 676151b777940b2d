//! What data parallel ranks are taken to do, in words, and what their buffers are for.

use crate::options::Options;
use crate::parallel::{FsdpWrap, Mesh, Sharding};
use crate::plan::Plan;
use crate::torch::Dtype;

/// Of the parameters of ZeRO 1 and 2.
const FLATTENED: &str =
    "parameters are copied into one buffer at the start, on the host where the card has no room for both";

impl Plan {
    /// How ranks share out the step, where there are several or they are told to.
    pub(crate) fn data_parallel(&self) -> Option<String> {
        let (options, mesh) = (&self.options, &self.mesh);
        let ranks = mesh.replicas();
        let each = options.micro_batch_size;
        let said = match options.parallel.sharding {
            Sharding::Replicated if ranks == 1 => return None,
            Sharding::Replicated => options.ddp(),
            Sharding::FullShard | Sharding::ShardGradOp | Sharding::HybridShard => {
                options.fsdp(mesh, self.architecture.shape.tie_word_embeddings)
            }
            Sharding::Zero1 | Sharding::Zero2 | Sharding::Zero3 => options.zero(),
        };
        let beside = if mesh.tp > 1 { options.beside_tensor_parallel() } else { "" };
        let shared = match ranks {
            1 => "1 rank, so that nothing is shared out (--gpus takes more)".to_owned(),
            _ => format!(
                "{ranks} ranks with {each} a micro-batch each, rank {} planned",
                options.parallel.rank
            ),
        };
        Some(format!("{shared}: {said}{beside}"))
    }
}

impl Options {
    fn ddp(&self) -> String {
        let data = &self.parallel.data;
        let gradients = match data.ddp_bucket_view {
            true => "in which gradients lie (gradient_as_bucket_view)",
            false => "beside the gradients themselves",
        };
        format!(
            "DistributedDataParallel; buckets of 25 MiB, the first of 1 MiB, {gradients}, as they are rebuilt after the first \
             backward{}",
            self.accumulates()
        )
    }

    fn fsdp(&self, mesh: &Mesh, is_tied: bool) -> String {
        let data = &self.parallel.data;
        let shards = mesh.shards(&self.parallel);
        let (replicas, reduced) =
            (mesh.replicas() / shards, data.reduce_dtype.unwrap_or(self.weights()).as_str());
        let over = match replicas {
            1 if shards == 1 => "over 1 rank".to_owned(),
            1 => format!("over {shards} ranks"),
            _ => format!("over {shards} ranks, {replicas} replicas of them"),
        };
        let (groups, whole) = match mesh.ep {
            1 => (self.groups(is_tied), self.kept_whole()),
            ep => {
                let having = match mesh.shards_of_experts(&self.parallel) {
                    1 => "a group by themselves".to_owned(),
                    ranks => format!("over the {ranks} ranks that have the same of {ep} parts"),
                };
                let experts = format!(
                    "the experts of a layer {having}, the rest of it, the embedding, and the last norm with the head \
                     (transformers' own `apply_fully_sharded_data_parallelism`)"
                );
                (experts, " but for the last")
            }
        };
        let reshard = match self.parallel.sharding {
            Sharding::ShardGradOp => {
                "whole from forward to backward (reshard_after_forward=False)".to_owned()
            }
            _ if mesh.pp > 1 => {
                format!(
                    "resharded after forward{whole}, and not after backward (torch.distributed.pipelining)"
                )
            }
            _ => format!("resharded after forward{whole}"),
        };
        let packed = match self.quantize {
            None => "",
            Some(_) => {
                "; packed weights are sharded, as with a bnb_4bit_quant_storage of bfloat16: accelerate leaves those of uint8, the \
                 default, whole on each rank"
            }
        };
        format!(
            "FSDP2 {over}, {groups}, loaded as shards, {reshard}; one group ahead in forward and in backward, one reduction \
             behind; gradients reduced in {reduced}{}{packed}",
            self.accumulates()
        )
    }

    /// The groups that are made of a model.
    fn groups(&self, is_tied: bool) -> String {
        let wrap = self.parallel.data.wrap.unwrap_or_default();
        let outside = match wrap {
            // beside adapters it does not find the last norm
            FsdpWrap::Accelerate if self.lora.is_some() && is_tied => {
                "one for the embedding, which is the head, and one for the rest"
            }
            FsdpWrap::Accelerate if self.lora.is_some() => {
                "one for the embedding, one for the head, and one for the rest"
            }
            FsdpWrap::Accelerate if is_tied => "one for the last norm and the embedding, which is the head",
            FsdpWrap::Accelerate => "one for the embedding, and one for the last norm with the head",
            FsdpWrap::Verl if !is_tied => "one for the embedding, and one for the rest",
            _ => "and one for the rest",
        };
        let who = match wrap {
            FsdpWrap::Accelerate => "as accelerate since 1.14 and torchtitan wrap it",
            FsdpWrap::Accelerate113 => "as accelerate up to 1.13 wraps it",
            FsdpWrap::Verl => "as verl wraps it",
            FsdpWrap::Layers => "as `fully_shard` of each layer and then of the model has it",
        };
        format!("a group for each decoder layer, {outside} ({who}; --fsdp-wrap)")
    }

    /// Which of them is not resharded after forward.
    fn kept_whole(&self) -> &'static str {
        match self.parallel.data.wrap.unwrap_or_default() {
            wrap if wrap.reshards_root() => "",
            FsdpWrap::Accelerate => " but for the last",
            _ => " but for the rest",
        }
    }

    /// How what tensor parallel leaves a rank is shared out, and by whom.
    fn beside_tensor_parallel(&self) -> &'static str {
        let sharding = self.parallel.sharding;
        if sharding.is_fsdp() {
            "; a rank's tensor parallel part of a parameter is what is shared out, by its rows (a mesh of two dimensions)"
        } else if sharding.is_zero() {
            "; over the rank's tensor parallel parts as transformers' plan leaves them, as plain tensors (DeepSpeed's AutoTP \
             splits the linear modules by the same plan)"
        } else {
            "; over the rank's tensor parallel parts as plain tensors (`_pre_dp_module_transform`, \
             torch/distributed/tensor/parallel/ddp.py; accelerate and torchtitan take FSDP2 there instead)"
        }
    }

    fn zero(&self) -> String {
        let sizes = self.parallel.data.zero;
        let bucket = sizes.reduce_bucket_size;
        let common =
            format!("DeepSpeed 0.19, one parameter group, a bucket of {bucket} numbers for gradients");
        match self.parallel.sharding {
            Sharding::Zero3 => format!(
                "ZeRO 3 ({common}; {} numbers at once at most, fetched {} at a time, those of at most {} kept whole, stepped in \
                 sub-groups of {}; the trace of modules is whole from the first step on)",
                sizes.max_live_parameters,
                sizes.prefetch_bucket_size,
                sizes.param_persistence_threshold,
                sizes.sub_group_size
            ),
            Sharding::Zero2 => format!("ZeRO 2 ({common}, summed in each backward; {FLATTENED})"),
            _ => format!("ZeRO 1 ({common}, summed once a step, from whole gradients; {FLATTENED})"),
        }
    }

    fn accumulates(&self) -> &'static str {
        match (self.gradient_accumulation_steps, self.parallel.data.sync_each_batch) {
            _ if self.parallel.pp > 1 => ", when all backward passes of a part are done",
            (1, _) => "",
            (_, true) => ", after each micro-batch",
            (_, false) => ", after the last micro-batch alone (no_sync)",
        }
    }

    /// The types that shards and partitions are kept in, where these differ from those of the precision.
    pub(crate) fn precision_of_shards(&self) -> Option<String> {
        let (kept, lora) = (self.weights().as_str(), self.lora.as_ref());
        if let Some(gathered) = self.gathered() {
            let of_adapters =
                lora.map_or(String::new(), |lora| format!(", adapters in {}", lora.dtype.as_str()));
            return Some(format!(
                "shards of weights, gradients and optimizer state in {kept}{of_adapters}, gathered and computed in {} \
                 (MixedPrecisionPolicy, as torchtitan has it: no autocast)",
                gathered.as_str()
            ));
        }
        self.is_deepspeed().then(|| {
            let (stepped, summed) = (self.stepped_in().as_str(), self.grad_dtype.map_or(kept, Dtype::as_str));
            let all = if lora.is_some() { "weights and adapters" } else { "weights" };
            format!(
                "{all} in {kept}, gradients summed in {summed}, partitions of master weights and optimizer state in {stepped} (no \
                 autocast)"
            )
        })
    }

    /// What waits on the host where parameters are shared out.
    pub(crate) fn offload_of_shards(&self) -> Option<&'static str> {
        let sharding = self.parallel.sharding;
        match self.offload.parameters {
            true if sharding.is_fsdp() => Some(
                "shards, their gradients and the optimizer are on the host; shards come to the card to be gathered (FSDP2's \
                 CPUOffloadPolicy)",
            ),
            true if sharding.is_zero() => Some(
                "partitions of parameters, gradients and optimizer state are on the host, where DeepSpeedCPUAdam steps \
                 (offload_param, offload_optimizer)",
            ),
            false if sharding.is_zero() && self.offload.optimizer => Some(
                "master weights, their gradients and optimizer state are on the host, where DeepSpeedCPUAdam steps \
                 (offload_optimizer)",
            ),
            _ => None,
        }
    }
}

/// What a buffer of that name is for, and where that was read.
pub(crate) fn rule(name: &str) -> Option<(&'static str, &'static str)> {
    const FSDP: &str = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py";
    const DDP: &str = "torch/csrc/distributed/c10d/reducer.cpp";
    const ZERO: &str = "deepspeed/runtime/zero/stage_1_and_2.py";
    const ZERO_3: &str = "deepspeed/runtime/zero/stage3.py";
    const COALESCED: &str = "deepspeed/runtime/comm/coalesced_collectives.py";
    Some(match name {
        "all-gather output" => ("what all ranks gather into, until it is copied out into parameters", FSDP),
        "shards to gather" => ("shards in the type that they are gathered in", FSDP),
        "reduce-scatter input" => ("whole gradients side by side, until the next reduction", FSDP),
        "reduce-scatter output" => ("the sum of the ranks' gradients, this rank's shards of it", FSDP),
        "gradients of the shards" => {
            ("what a reduction left, which the gradients of the shards are views of", FSDP)
        }
        "gradient bucket" => ("gradients side by side, which ranks sum when it is full; kept for good", DDP),
        "flat parameters" => ("all parameters in one piece, each a view of it", ZERO),
        "master weights of the partition" => ("this rank's part of the parameters, as it is stepped", ZERO),
        "partition on its way back" => ("the part that was stepped, in the model's type", ZERO),
        "largest gradient on its way" => ("room for one gradient between card and host", ZERO),
        "reduce bucket" => ("gradients side by side, until ranks have summed them", ZERO),
        "gradients side by side" => ("the bucket once more, where it holds parts of several ranks", ZERO),
        "gradients in the partition" => ("gradients of what this rank steps", ZERO),
        "gradients so far" => ("a gradient of the micro-batches so far, on the host", ZERO),
        "gradient of the partition" => ("the gradient of this rank's part in one piece", ZERO),
        "norm of all gradients" => ("what the engine is asked for after a step (get_global_grad_norm)", ZERO),
        "overflow found" => ("whether a gradient was not finite", ZERO_3),
        "partitioned parameters" => ("this rank's part of every parameter", ZERO_3),
        "partitioned gradients" => ("the gradients of this rank's parts, kept for good", ZERO_3),
        "master weights of a sub-group" => ("parts of parameters that are stepped together", ZERO_3),
        "gradient of a sub-group" => ("the gradients of a sub-group in one piece", ZERO_3),
        "gradients by ranks" => ("the bucket once more, laid out as ranks share it out", COALESCED),
        _ => return None,
    })
}

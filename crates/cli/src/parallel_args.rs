//! The options that spread a training step over many GPUs.

use crate::data_parallel_args::DataParallelArgs;
use crate::parsers;
use crate::values::values;
use clap::Args;
use peakledger_input::Problem;
use peakledger_plan::Dtype;
use peakledger_plan::parallel::{CpComm, Parallel, RotateMethod, Schedule, Sharding, Stack};

/// How the step is spread. Nothing here has a default of clap's, so that a candidate changes only what it names.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Many GPUs")]
pub(crate) struct ParallelArgs {
    /// All GPUs [default: the product of the sizes]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    gpus: Option<u32>,
    /// Data parallel size [default: what --gpus leaves for it]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    dp: Option<u32>,
    /// DeepSpeed's ZeRO stage [default: 0]; with --stack megatron, 1 is its distributed optimizer
    #[arg(long, value_enum, value_name = "STAGE")]
    zero: Option<ZeroArg>,
    /// Shard parameters, gradients and optimizer state of each layer (FSDP2) [default: none]
    #[arg(long, value_enum, value_name = "STRATEGY")]
    fsdp: Option<FsdpArg>,
    /// Tensor parallel size [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    tp: Option<u32>,
    /// Sequence parallel: what lies between the matrices is split by sequence over the tensor parallel ranks
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    sp: Option<bool>,
    /// Loss parallel: logits stay split by vocabulary over the tensor parallel ranks, and the loss takes them so
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    loss_parallel: Option<bool>,
    /// Pipeline parallel size: stages of layers [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    pp: Option<u32>,
    /// In which order a stage runs its micro-batches [default: 1f1b; interleaved with --virtual-stages]
    #[arg(long, value_enum, value_name = "NAME")]
    schedule: Option<ScheduleArg>,
    /// Parts of layers in a stage [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    virtual_stages: Option<u32>,
    /// Layers of the first stage [default: as many as the others]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    decoder_first_pipeline_num_layers: Option<u32>,
    /// Layers of the last stage [default: as many as the others]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    decoder_last_pipeline_num_layers: Option<u32>,
    /// Context parallel size: a sequence is split over so many ranks [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    cp: Option<u32>,
    /// How keys and values come to context parallel ranks (torch's `set_rotate_method`) [default: allgather]
    #[arg(long, value_enum, value_name = "METHOD")]
    cp_rotate_method: Option<RotateArg>,
    /// Whether each context parallel rank has a part from the front of the sequence and one from its back [default: as torch
    /// has it, where 2 × --cp divides the length]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    cp_load_balance: Option<bool>,
    /// How context parallel ranks of --stack megatron attend to each other's parts: p2p goes round with keys and values, a2a gives each some heads
    /// of the whole sequence [default: p2p]
    #[arg(long, value_enum, value_name = "TYPE")]
    cp_comm_type: Option<CpCommArg>,
    /// Expert parallel size [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    ep: Option<u32>,
    /// Expert tensor parallel size [default: --tp; 1 where --ep spreads transformers' experts]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    etp: Option<u32>,
    /// GPUs of a node, to which ranks are dealt out in their order [default: 8, as HGX and DGX machines have]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    gpus_per_node: Option<u32>,
    /// Data parallel ranks that hybrid_shard shards over [default: those of a node]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    dp_shard_size: Option<u32>,
    /// Gb/s of the network between nodes for each GPU: what a node has, by its GPUs [default: what NVIDIA's DGX machine with
    /// the card of --gpu has]
    #[arg(long, value_name = "GBPS", allow_negative_numbers = true, value_parser = parsers::gbps)]
    network_gbps_per_gpu: Option<u64>,
    /// What the communicator of a process group takes of a card, outside the allocator [default: 544 MiB for two ranks, 688 MiB
    /// for more, as measured on A100s]
    #[arg(long, value_name = "SIZE", value_parser = parsers::size)]
    nccl_bytes_per_group: Option<u64>,
    /// Whose modules run the step [default: transformers]
    #[arg(long, value_enum, value_name = "NAME")]
    stack: Option<StackArg>,
    #[command(flatten)]
    data: DataParallelArgs,
}

values!(ZeroArg for Sharding {
    Zero0 = "0" | "none" | "off" => Sharding::Replicated,
    Zero1 = "1" => Sharding::Zero1,
    Zero2 = "2" => Sharding::Zero2,
    Zero3 = "3" => Sharding::Zero3,
});
values!(FsdpArg for Sharding {
    None = "none" | "off" => Sharding::Replicated,
    FullShard = "full_shard" => Sharding::FullShard,
    ShardGradOp = "shard_grad_op" => Sharding::ShardGradOp,
    HybridShard = "hybrid_shard" => Sharding::HybridShard,
});
values!(ScheduleArg for Schedule {
    OneFOneB = "1f1b" => Schedule::OneFOneB,
    Gpipe = "gpipe" => Schedule::Gpipe,
    Interleaved = "interleaved" => Schedule::Interleaved,
    ZbH1 = "zb-h1" => Schedule::ZbH1,
    ZbH2 = "zb-h2" => Schedule::ZbH2,
    DualPipe = "dualpipe" => Schedule::DualPipe,
});
values!(CpCommArg for CpComm {
    P2p = "p2p" => CpComm::P2p,
    AllToAll = "a2a" => CpComm::AllToAll,
});
values!(RotateArg for RotateMethod {
    AllGather = "allgather" => RotateMethod::AllGather,
    AllToAll = "alltoall" => RotateMethod::AllToAll,
});
values!(StackArg for Stack {
    Transformers = "transformers" => Stack::Transformers,
    Megatron = "megatron" => Stack::Megatron,
});

impl ParallelArgs {
    /// The plain request: rank 0 of the world that is asked for.
    pub(crate) fn parallel(&self) -> Result<Parallel, Problem> {
        let default = Parallel::default();
        let virtual_stages = self.virtual_stages.unwrap_or(default.virtual_stages);
        let usual_schedule = if virtual_stages > 1 { Schedule::Interleaved } else { default.schedule };
        Ok(Parallel {
            gpus: self.gpus,
            dp: self.dp,
            sharding: self.sharding()?,
            data: self.data.data(),
            tp: self.tp.unwrap_or(default.tp),
            sp: self.sp.unwrap_or(default.sp),
            loss_parallel: self.loss_parallel.unwrap_or(default.loss_parallel),
            pp: self.pp.unwrap_or(default.pp),
            schedule: self.schedule.map_or(usual_schedule, Into::into),
            virtual_stages,
            first_stage_layers: self.decoder_first_pipeline_num_layers,
            last_stage_layers: self.decoder_last_pipeline_num_layers,
            cp: self.cp.unwrap_or(default.cp),
            cp_rotate: self.cp_rotate_method.map_or(default.cp_rotate, Into::into),
            cp_load_balance: self.cp_load_balance,
            cp_comm: self.cp_comm_type.map_or(default.cp_comm, Into::into),
            ep: self.ep.unwrap_or(default.ep),
            etp: self.etp,
            gpus_per_node: self.gpus_per_node.unwrap_or(default.gpus_per_node),
            dp_shard_size: self.dp_shard_size,
            network_bits_per_second: self.network_gbps_per_gpu,
            nccl_bytes_per_group: self.nccl_bytes_per_group,
            rank: default.rank,
        })
    }

    /// Whether an option is said: one of those that a search has usual values of.
    pub(crate) fn says(&self, option: &str) -> bool {
        match option {
            "dp" => self.dp.is_some(),
            "zero" => self.zero.is_some(),
            "fsdp" => self.fsdp.is_some(),
            "tp" => self.tp.is_some(),
            "sp" => self.sp.is_some(),
            "pp" => self.pp.is_some(),
            "cp" => self.cp.is_some(),
            "ep" => self.ep.is_some(),
            _ => false,
        }
    }

    /// The type that FSDP is told to reduce gradients in.
    pub(crate) fn reduce_dtype(&self) -> Option<Dtype> {
        self.data.data().reduce_dtype
    }

    /// Whether it is said who wraps the model by FSDP.
    pub(crate) fn says_wrap(&self) -> bool {
        self.data.data().wrap.is_some()
    }

    /// Whose modules run the step.
    pub(crate) fn stack(&self) -> Stack {
        self.stack.map_or(Stack::default(), Into::into)
    }

    fn sharding(&self) -> Result<Sharding, Problem> {
        let fsdp = self.fsdp.map_or(Sharding::Replicated, Into::into);
        let zero = self.zero.map_or(Sharding::Replicated, Into::into);
        match (fsdp, zero) {
            (Sharding::Replicated, sharding) | (sharding, Sharding::Replicated) => Ok(sharding),
            _ => {
                let problem = Problem::in_option("--fsdp", "it does not go with `--zero`");
                Err(problem.mend("keep one of the two; `--fsdp none` and `--zero 0` are off"))
            }
        }
    }
}

//! How a step is spread over many GPUs: the sizes that are asked for, whether they make a world, and which part of the step
//! a rank runs.
//!
//! Names are Megatron's: `tp` tensor, `pp` pipeline, `cp` context, `dp` data, `ep` expert and `etp` expert-tensor parallel size.
//! The world is `tp × cp × dp × pp` ranks; experts are spread over the same ranks as `etp × ep × edp × pp`.

pub(crate) mod bubble;
mod check;
mod communicators;
pub(crate) mod context;
pub(crate) mod data;
pub(crate) mod experts;
mod idle;
pub(crate) mod megatron;
mod mesh;
mod nodes;
mod notes;
mod ranks;
pub(crate) mod resident;
pub(crate) mod schedule;
pub(crate) mod stage;
pub(crate) mod tensor;

pub use crate::torch::ops::RotateMethod;
pub use communicators::Communicator;
pub(crate) use communicators::communicators;
pub use data::{DataParallel, FsdpWrap, ZeroSizes};
pub use mesh::{Mesh, Place};
pub use ranks::{Class, Look, RankClass, Ranks, Shown, classes, plan_ranks, plan_ranks_closely};
pub(crate) use ranks::{classes_closely, classes_that_may_need_most, plan_classes};

/// How a step is spread over GPUs. Of the sizes that are left out, `dp` is what the number of GPUs leaves for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// All ranks, where their number is given.
    pub gpus: Option<u32>,
    /// Ranks that run the same part on other batches.
    pub dp: Option<u32>,
    /// What data parallel ranks share out among them.
    pub sharding: Sharding,
    /// What else they are told.
    pub data: DataParallel,
    /// Ranks that share out the matrices of a layer.
    pub tp: u32,
    /// Whether what lies between the matrices is shared out by sequence among the same ranks.
    pub sp: bool,
    /// Whether the loss is computed over logits whose vocabulary stays shared out among the same ranks (torch's
    /// `loss_parallel`).
    pub loss_parallel: bool,
    /// Stages of layers.
    pub pp: u32,
    /// In which order a stage runs its micro-batches.
    pub schedule: Schedule,
    /// Parts of a stage, each of layers in a row (`--virtual-stages`).
    pub virtual_stages: u32,
    /// Layers of the first stage, where it has another number than the others (`--decoder-first-pipeline-num-layers`).
    pub first_stage_layers: Option<u32>,
    /// Layers of the last stage.
    pub last_stage_layers: Option<u32>,
    /// Ranks that share out a sequence.
    pub cp: u32,
    /// How they attend to each other's parts of it, on Megatron's modules.
    pub cp_comm: CpComm,
    /// How keys and values come to them, on transformers' modules.
    pub cp_rotate: RotateMethod,
    /// Whether each has a part from the front of the sequence and one from its back; without a word, where it divides so, as
    /// torch has it.
    pub cp_load_balance: Option<bool>,
    /// Ranks that share out the experts of a layer.
    pub ep: u32,
    /// Ranks that share out the matrices of an expert; `tp` where it is left out.
    pub etp: Option<u32>,
    /// GPUs of a node. Eight is what HGX and DGX machines have.
    pub gpus_per_node: u32,
    /// Data parallel ranks that `hybrid_shard` shards over; without a word those of a node.
    pub dp_shard_size: Option<u32>,
    /// Bits a second of the network between nodes for each GPU, where the card's machine of reference has other ones or none.
    pub network_bits_per_second: Option<u64>,
    /// What a communicator takes of the card outside the allocator, where it is known.
    pub nccl_bytes_per_group: Option<u64>,
    /// The rank that is planned.
    pub rank: u32,
}

impl Default for Parallel {
    fn default() -> Parallel {
        Parallel {
            gpus: None,
            dp: None,
            sharding: Sharding::default(),
            data: DataParallel::default(),
            tp: 1,
            sp: false,
            loss_parallel: false,
            pp: 1,
            schedule: Schedule::default(),
            virtual_stages: 1,
            first_stage_layers: None,
            last_stage_layers: None,
            cp: 1,
            cp_comm: CpComm::default(),
            cp_rotate: RotateMethod::default(),
            cp_load_balance: None,
            ep: 1,
            etp: None,
            gpus_per_node: 8,
            dp_shard_size: None,
            network_bits_per_second: None,
            nccl_bytes_per_group: None,
            rank: 0,
        }
    }
}

/// What data parallel ranks share out among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharding {
    /// Nothing: each has all (`DistributedDataParallel`; ZeRO stage 0).
    #[default]
    Replicated,
    /// DeepSpeed's ZeRO stage 1, the optimizer state; under `--stack megatron` its distributed optimizer.
    Zero1,
    /// Stage 2: the gradients too.
    Zero2,
    /// Stage 3: the parameters too.
    Zero3,
    /// FSDP2's `fully_shard` of every layer, resharded after forward.
    FullShard,
    /// FSDP2 with layers that stay whole from forward to backward (`reshard_after_forward=False`).
    ShardGradOp,
    /// FSDP2 sharded within a node as `full_shard` is, and replicated between nodes.
    HybridShard,
}

impl Sharding {
    /// Whether it is one of DeepSpeed's stages.
    pub const fn is_zero(self) -> bool {
        matches!(self, Sharding::Zero1 | Sharding::Zero2 | Sharding::Zero3)
    }

    /// Whether it is one of FSDP2's.
    pub const fn is_fsdp(self) -> bool {
        matches!(self, Sharding::FullShard | Sharding::ShardGradOp | Sharding::HybridShard)
    }
}

/// In which order a pipeline stage runs its micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// One forward, one backward, after a warm-up (PipeDream-flush; Megatron's default).
    #[default]
    OneFOneB,
    /// All forward, then all backward.
    Gpipe,
    /// 1F1B over several parts of layers in a stage.
    Interleaved,
    /// Zero bubble, at 1F1B's memory.
    ZbH1,
    /// Zero bubble, at twice that.
    ZbH2,
    /// Both directions at once, two copies of the parameters (DeepSeek-V3).
    DualPipe,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Schedule; 6] = [
        Schedule::Gpipe,
        Schedule::OneFOneB,
        Schedule::Interleaved,
        Schedule::ZbH1,
        Schedule::ZbH2,
        Schedule::DualPipe,
    ];

    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Schedule::OneFOneB => "1f1b",
            Schedule::Gpipe => "gpipe",
            Schedule::Interleaved => "interleaved",
            Schedule::ZbH1 => "zb-h1",
            Schedule::ZbH2 => "zb-h2",
            Schedule::DualPipe => "dualpipe",
        }
    }
}

/// How context parallel ranks attend to each other's parts of a sequence (`--cp-comm-type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpComm {
    /// Keys and values go round from rank to rank.
    #[default]
    P2p,
    /// Each takes some heads of the whole sequence.
    AllToAll,
}

/// Which modules run the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stack {
    /// Those of `transformers`, as they are written.
    #[default]
    Transformers,
    /// Megatron-Core's with Transformer Engine's fused modules.
    Megatron,
}

//! The batches: what of a micro-batch is placed on the device.

use crate::model::Batch;
use crate::options::Options;
use crate::torch::tape::{ModuleId, NEVER, Role};
use crate::torch::{Dtype, Layout, Tensor, Torch};
use peakledger_core::{Category, Detail};
use std::rc::Rc;

/// Places a micro-batch on the device.
pub(crate) fn load(torch: &Rc<Torch>, options: &Options, seq_len: u64, micro_batch: u32) -> Batch {
    let input = |name| place_input(torch, options, seq_len, (name, micro_batch));
    let attention_mask = options.padded.then(|| input("attention_mask"));
    // a model whose hidden states are split by sequence would count those of its part
    let position_ids = options.parallel.sp.then(|| input("position_ids"));
    Batch {
        input: input("input_ids"),
        attention_mask,
        position_ids,
        labels: Some(input("labels")),
        shift_labels: None,
        loss_mask: None,
    }
}

/// Places what a rank has of a micro-batch on the device when its turn comes (`get_batch` in Megatron-LM's
/// `pretrain_gpt.py`).
pub(crate) fn load_part(torch: &Rc<Torch>, options: &Options, seq_len: u64, micro_batch: u32) -> Batch {
    let input = |name, dtype| {
        let layout =
            Layout::contiguous(&[options.micro_batch_size, seq_len / u64::from(options.parallel.cp)]);
        let kind = (Category::Activation, Some(Detail::Input));
        torch.place(layout, dtype, kind, ModuleId(0), Role::Input { name, micro_batch })
    };
    Batch {
        input: input("tokens", Dtype::Int64),
        attention_mask: None,
        labels: Some(input("labels", Dtype::Int64)),
        shift_labels: None,
        loss_mask: Some(input("loss_mask", Dtype::F32)),
        position_ids: Some(input("position_ids", Dtype::Int64)),
    }
}

/// Places a tensor of a micro-batch, `[b, s]`.
pub(crate) fn place_input(
    torch: &Rc<Torch>,
    options: &Options,
    seq_len: u64,
    (name, micro_batch): (&'static str, u32),
) -> Tensor {
    // positions are the same in every row
    let rows = if name == "position_ids" { 1 } else { options.micro_batch_size };
    let layout = Layout::contiguous(&[rows, seq_len]);
    let kind = (Category::Activation, Some(Detail::Input));
    let tensor = torch.place(layout, Dtype::Int64, kind, ModuleId(0), Role::Input { name, micro_batch });
    tensor.relabel(|stored| stored.tracked = NEVER);
    tensor
}

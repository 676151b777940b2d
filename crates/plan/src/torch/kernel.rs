//! Memory inside kernels: what CUDA kernels allocate for themselves and give back before they return, and the workspaces
//! that cuBLAS keeps. The dispatcher, and so torch's tracker, never sees it; `torch.cuda.max_memory_allocated` does, and so does
//! the device level here.

use super::tape::{NEVER, Role, Stored, rounded};
use super::{Dtype, Layout, ModuleId, Tensor, Torch};
use peakledger_core::{Category, Detail, Device};
use std::rc::Rc;

const KERNEL: (Category, Option<Detail>) = (Category::Workspace, Some(Detail::Kernel));

impl Torch {
    /// What the running kernel allocates for itself; it goes with the handle.
    fn scratch(self: &Rc<Self>, elements: u64, dtype: Dtype) -> Tensor {
        let scratch = self.unwritten(Layout::contiguous(&[elements]), dtype);
        scratch.relabel(|stored| {
            (stored.category, stored.detail) = KERNEL;
            stored.tracked = NEVER;
        });
        scratch
    }

    /// A thread's first matrix product takes a workspace for cuBLAS and keeps it: one for the thread of the loop, one for
    /// autograd's (`getNewWorkspace`, `aten/src/ATen/cuda/CublasHandlePool.cpp`).
    pub(crate) fn cublas(&self) {
        let has = if self.in_backward.get() { &self.cublas.1 } else { &self.cublas.0 };
        if self.halted.get() || has.replace(true) {
            return;
        }
        self.note(|facts| facts.layouts.push(Layout::contiguous(&[self.cublas_workspace.get()])));
        let mut tape = self.tape.borrow_mut();
        let birth = tape.now();
        let (category, detail) = KERNEL;
        tape.bear(Stored {
            bytes: rounded(self.cublas_workspace.get()),
            birth,
            tracked: NEVER,
            death: NEVER,
            device: Device::Gpu,
            stream: self.stream.get(),
            category,
            detail,
            dtype: Dtype::Byte,
            module: ModuleId(0),
            role: Role::Named { name: "cuBLAS workspace" },
            copied_for: None,
        });
    }
}

/// The workspace that torch gives to cuBLAS: 32 MiB on Hopper and Blackwell, else `:4096:2:16:8` in KiB
/// (`parseChosenWorkspaceSize`, `aten/src/ATen/cuda/CublasHandlePool.cpp`).
pub(crate) fn cublas_workspace(capability: Option<(u8, u8)>) -> u64 {
    match capability {
        Some((9 | 10 | 12, _)) => 32 << 20,
        _ => SMALL_WORKSPACE,
    }
}

/// `:4096:2:16:8`, in KiB.
const SMALL_WORKSPACE: u64 = (2 * 4096 + 8 * 16) << 10;

/// The same of torch 2.10, which does not give Blackwell more (pytorch PR 175344 does, of February 2026).
pub(crate) fn cublas_workspace_of_torch_2_10(capability: Option<(u8, u8)>) -> u64 {
    match capability {
        Some((9, _)) => cublas_workspace(capability),
        _ => SMALL_WORKSPACE,
    }
}

/// What a kernel allocates inside an op, in words, and where that was read.
pub(crate) fn rule(op: &str) -> Option<(&'static str, &'static str)> {
    Some(match op {
        "_softmax_backward_data" => (
            "the product of gradient and output, in the wider of their types",
            "aten/src/ATen/native/cuda/SoftMax.cu",
        ),
        "embedding_dense_backward" => (
            "the ids sorted, the segments that they form and their partial sums in fp32, where there are more than 3072 tokens",
            "aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu",
        ),
        "_scaled_dot_product_flash_attention_backward" => (
            "the sums `dout · out` and the queries' gradient in fp32, padded; with grouped heads the gradients of keys and values for all heads",
            "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp",
        ),
        "_scaled_dot_product_efficient_attention_backward" => (
            "the sums `dout · out` and the queries' gradient in fp32, in tiles of 64 × 64 with a lock each",
            "aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h",
        ),
        "index_put" => (
            "the places in one number a row, sorted, with the order that they had and came to: four numbers of 8 bytes a row",
            "aten/src/ATen/native/cuda/Indexing.cu",
        ),
        "sort" => (
            "a count of what is sorted, 8 bytes each, above 4096 of them",
            "aten/src/ATen/native/cuda/Sort.cu",
        ),
        "int8_vectorwise_quant" => (
            "the magnitudes in fp16 and which of them pass the outlier threshold",
            "bitsandbytes/backends/cuda/ops.py",
        ),
        "int8_mixed_scaled_mm" => (
            "the product in int32, and in fp16 where the result is of another type",
            "bitsandbytes/backends/cuda/ops.py",
        ),
        _ => return None,
    })
}

/// What cuBLAS is given, in words, and where that was read.
pub(crate) const CUBLAS_RULE: (&str, &str) = (
    "32 MiB on Hopper and Blackwell, else 8.125 MiB, for each thread that multiplies: the loop's and autograd's",
    "aten/src/ATen/cuda/CublasHandlePool.cpp",
);

/// Softmax backward starts from `grad * output` (`softmax_backward_cuda_out`, `aten/src/ATen/native/cuda/SoftMax.cu`).
pub(crate) fn softmax_backward(grad: &Tensor, result: &Tensor) -> Tensor {
    let dtype = grad.dtype().promote(result.dtype());
    grad.torch().scratch(result.layout().numel(), dtype)
}

/// Embedding backward sorts what more than 3072 tokens ask for and sums their gradients run by run, in fp32
/// (`embedding_dense_backward_cuda`, `aten/src/ATen/native/cuda/Embedding.cu`; `embedding_backward_cuda_kernel`,
/// `EmbeddingBackwardKernel.cu`).
pub(crate) fn embedding_backward(grad: &Tensor, tokens: u64, [rows, width]: [u64; 2]) -> Vec<Tensor> {
    if tokens <= 3072 {
        return Vec::new();
    }
    let segments = tokens.min(rows);
    let partial_segments = segments.saturating_add(tokens / 10); // NROWS_PER_THREAD
    let integers = [tokens, tokens, tokens, segments, segments, partial_segments];
    let torch = grad.torch();
    let mut scratch: Vec<Tensor> = integers.into_iter().map(|n| torch.scratch(n, Dtype::Int64)).collect();
    scratch.push(torch.scratch(partial_segments.saturating_mul(width), Dtype::F32));
    scratch
}

/// Flash attention's backward: the sums `dout · out`, the gradient of the queries in fp32, and with grouped heads those of
/// keys and values for every head (`mha_bwd`, `aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`).
pub(crate) fn flash_backward(q: &Tensor, k: &Tensor) -> Vec<Tensor> {
    let [batch, heads, length, width] = [0, 1, 2, 3].map(|dim| q.size(dim));
    let rows = batch.saturating_mul(heads).saturating_mul(length.next_multiple_of(128));
    let torch = q.torch();
    let mut scratch = vec![
        torch.scratch(rows, Dtype::F32),
        torch.scratch(rows.saturating_mul(width.next_multiple_of(32)), Dtype::F32),
    ];
    if k.size(1) != heads {
        let expanded = batch.saturating_mul(k.size(2)).saturating_mul(heads).saturating_mul(width);
        scratch.extend([0, 1].map(|_| torch.scratch(expanded, q.dtype())));
    }
    scratch
}

/// Memory-efficient attention's backward: the sums `dout · out`, and the gradient of the queries in fp32, in tiles of
/// 64 × 64 with a lock each (`_efficient_attention_backward`, `attention_backward.cu`; `workspace_size`,
/// `mem_eff_attention/kernel_backward.h`).
pub(crate) fn memory_efficient_backward(q: &Tensor, _k: &Tensor) -> Vec<Tensor> {
    let [batch, heads, length, width] = [0, 1, 2, 3].map(|dim| q.size(dim));
    let of_all_heads = batch.saturating_mul(heads);
    let tiles = length.div_ceil(64).saturating_mul(width.div_ceil(64));
    let torch = q.torch();
    vec![
        torch.scratch(of_all_heads.saturating_mul(length), Dtype::F32),
        torch.scratch(of_all_heads.saturating_mul(tiles).saturating_mul(64 * 64 + 4), Dtype::F32),
    ]
}

/// Adding rows into places that may be the same sorts the places first: each as one number, those sorted, a count, and the
/// order that it comes to (`index_put_with_sort_kernel`, `aten/src/ATen/native/cuda/Indexing.cu`). What CUB takes to sort is
/// not here.
pub(crate) fn index_backward(grad: &Tensor, rows: u64) -> Vec<Tensor> {
    (0..4).map(|_| grad.torch().scratch(rows, Dtype::Int64)).collect()
}

/// Sorting more than 4096 numbers at once goes by a count of them (`segmented_sort_large_segments`,
/// `aten/src/ATen/native/cuda/Sort.cu`; `should_use_small_sort`, `Sort.h`).
pub(crate) fn sort(a: &Tensor) -> Option<Tensor> {
    let numbers = a.layout().numel();
    (numbers > 4096).then(|| a.torch().scratch(numbers, Dtype::Int64))
}

/// Packing activations to int8 looks for outliers first: magnitudes, and which of them pass the threshold
/// (`int8_vectorwise_quant`, `bitsandbytes/backends/cuda/ops.py`).
pub(crate) fn int8_quantization(half: &Tensor) -> Vec<Tensor> {
    let elements = half.layout().numel();
    [Dtype::F16, Dtype::Bool].map(|dtype| half.torch().scratch(elements, dtype)).into()
}

/// An int8 product is summed in int32 and scaled to fp16, of which the result is a copy where it is of another type
/// (`int8_scaled_mm`, `bitsandbytes/backends/default/ops.py`; `int8_mm_dequant`, `backends/cuda/ops.py`).
pub(crate) fn int8_product(result: &Tensor) -> Vec<Tensor> {
    let elements = result.layout().numel();
    let scaled = (result.dtype() != Dtype::F16).then_some(Dtype::F16);
    [Dtype::Int32].into_iter().chain(scaled).map(|dtype| result.torch().scratch(elements, dtype)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a kernel takes inside itself, by pencil.
    #[test]
    fn scratch_of_routing_and_of_int8() {
        let torch = Torch::new(0, None);
        let tensor = |elements, dtype| torch.empty(Layout::contiguous(&[elements]), dtype);
        let taken = |scratch: Vec<Tensor>| {
            let tape = torch.tape.borrow();
            let bytes =
                |tensor: &Tensor| tape.stored.get(tensor.storage_id().0 as usize).map(|stored| stored.bytes);
            scratch.iter().filter_map(bytes).sum::<u64>()
        };
        torch.launch("index_put");
        assert_eq!(taken(index_backward(&tensor(1, Dtype::Bf16), 6400)), 4 * 6400 * 8);
        assert_eq!(taken(sort(&tensor(4096, Dtype::Int64)).into_iter().collect()), 0);
        assert_eq!(taken(sort(&tensor(4160, Dtype::Int64)).into_iter().collect()), rounded(4160 * 8));
        assert_eq!(taken(int8_quantization(&tensor(1 << 20, Dtype::F16))), 3 << 20);
        assert_eq!(taken(int8_product(&tensor(1 << 20, Dtype::F16))), 4 << 20);
        assert_eq!(taken(int8_product(&tensor(1 << 20, Dtype::Bf16))), 6 << 20);
    }
}

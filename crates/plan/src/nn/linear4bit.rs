//! `Linear4bit` of bitsandbytes: a frozen weight packed two elements a byte with a scale a block, made whole again for each
//! product (`bitsandbytes/nn/modules.py`, `autograd/_functions.py`, `functional.py`).

use super::{Builder, Packing};
use crate::options::Quantize;
use crate::torch::{Dtype, ModuleId, Tensor, ops};
use smallvec::SmallVec;

/// The packed weight, and the type it computes in.
pub(crate) struct Weight4bit {
    packed: Tensor,
    sizes: [u64; 2],
    /// How many scales there are, where these are packed too.
    packed_scales: Option<u64>,
    compute: Dtype,
    /// Scales and tables, which live as long as the weight.
    _state: SmallVec<[Tensor; 2]>,
}

/// Elements that share a scale, and scales that do where these are packed too.
const BLOCK: u64 = 64;
const SCALES_BLOCK: u64 = 256;

impl Weight4bit {
    /// Packs a weight of `[out, in]`, which is on the device as it was loaded while that is done (`Params4bit._quantize`).
    pub(crate) fn new(
        build: &mut Builder,
        module: ModuleId,
        sizes: [u64; 2],
        Packing { quantize, loaded, compute }: Packing,
    ) -> Weight4bit {
        let [outputs, inputs] = sizes;
        let elements = outputs.saturating_mul(inputs);
        let loaded = build.passing(module, &sizes, loaded);
        let packed = build.packed(module, "weight", elements.div_ceil(2), elements);
        let scales = elements.div_ceil(BLOCK);
        let mut state = SmallVec::new();
        let mut buffer = |name, size: u64, dtype| state.push(build.buffer(module, name, &[size], dtype));
        buffer("weight.quant_map", 16, Dtype::F32);
        if quantize == Quantize::Nf4Double {
            buffer("weight.absmax", scales, Dtype::Byte);
            buffer("weight.nested_absmax", scales.div_ceil(SCALES_BLOCK), Dtype::F32);
            buffer("weight.nested_offset", 1, Dtype::F32);
        } else {
            buffer("weight.absmax", scales, Dtype::F32);
        }
        let scales_in_fp32 =
            (quantize == Quantize::Nf4Double).then(|| build.passing(module, &[scales], Dtype::F32));
        build.torch.launch("quantize_4bit");
        drop((loaded, scales_in_fp32));
        let packed_scales = (quantize == Quantize::Nf4Double).then_some(scales);
        Weight4bit { packed, sizes, packed_scales, compute, _state: state }
    }

    /// `x @ weight.T + bias` in the type it computes in, given back in that of `x`.
    pub(crate) fn forward(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let dtype = x.dtype();
        let x = ops::to(x, self.compute);
        let bias = bias.map(|bias| ops::to(bias, self.compute));
        ops::to(ops::matmul_4bit(&x, &self.packed, self.sizes, self.packed_scales, bias.as_ref()), dtype)
    }
}

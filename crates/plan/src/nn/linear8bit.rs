//! `Linear8bitLt` of bitsandbytes as transformers loads it (`load_in_8bit`): a frozen weight of a byte a number with a scale
//! a row, multiplied as it is and made whole for the gradient (`bitsandbytes/nn/modules.py`, `autograd/_functions.py`).

use super::{Builder, Packing};
use crate::torch::{Dtype, ModuleId, Tensor, ops};

/// The packed weight, `CB`, and its scales, `SCB`.
pub(crate) struct Weight8bit {
    packed: Tensor,
    row_scales: Tensor,
    sizes: [u64; 2],
}

impl Weight8bit {
    /// Packs a weight of `[out, in]`, which is on the device as it was loaded and in fp16 while that is done
    /// (`Int8Params._quantize`).
    pub(crate) fn new(
        build: &mut Builder,
        module: ModuleId,
        sizes: [u64; 2],
        packing: Packing,
    ) -> Weight8bit {
        let [outputs, inputs] = sizes;
        let elements = outputs.saturating_mul(inputs);
        let loaded = [packing.loaded, Dtype::F16].map(|dtype| build.passing(module, &sizes, dtype));
        let packed = build.packed(module, "weight", elements, elements);
        let row_scales = build.buffer(module, "SCB", &[outputs], Dtype::F32);
        build.torch.launch("int8_vectorwise_quant");
        drop(loaded);
        Weight8bit { packed, row_scales, sizes }
    }

    /// `x @ weight.T`, in the type of `x`; the kernel adds the bias.
    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        ops::matmul_8bit(x, &self.packed, &self.row_scales, self.sizes)
    }
}

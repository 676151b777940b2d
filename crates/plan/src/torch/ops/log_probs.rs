//! Head and log-probabilities as one op, as TRL's trainers compute them: `ChunkedLogProbFunction`
//! (`trl/kernels/chunked_logprob.py`, 1.16). Logits are made a tile at a time, and again in backward.

use super::pointwise::{like, to};
use super::{one, output};
use crate::torch::autograd::{record, recorded};
use crate::torch::cost::product_flops;
use crate::torch::{Dtype, Layout, Tensor, Torch};
use smallvec::smallvec;
use std::rc::Rc;

/// `TOKEN_CHUNK_SIZE` of the kernel and `_CHUNKED_LOGPROB_CHUNK_SIZE` of `trl/trainer/utils.py`.
const TILE: [u64; 2] = [4096, 32_768];

/// `a[:, :-1]` of `[b, s, h]`. Backward fills zeros around the gradient.
pub(crate) fn all_but_last(a: &Tensor) -> Tensor {
    let full = a.layout().packed();
    let part = Layout::contiguous(&[a.size(0), a.size(1).saturating_sub(1), a.size(2)]);
    record(a.alias(part), &[a], move |grad| one(like("slice_backward", grad, full.clone())))
}

/// The log-probabilities `[rows]` that a head `[vocabulary, width]` gives the targets after hidden states `[rows, width]`,
/// and their entropies. Saves what it is given and two numbers a row; where ranks share the head out, it is whole while it
/// is multiplied. Backward sums both gradients in fp32, whatever the
/// types, and casts them when they are whole.
pub(crate) fn chunked_log_probs(hidden: &Tensor, weight: &Tensor, targets: &Tensor) -> Tensor {
    let torch = hidden.torch().clone();
    let rows = hidden.size(0);
    let whole = torch.whole(weight);
    let tiles = Tiles::of(hidden, weight);
    let a_row = |op| output(&torch, op, Layout::contiguous(&[rows]), Dtype::F32);
    let running = ["full", "zeros", "zeros", "zeros", "zeros", "full", "zeros"].map(a_row);
    let buffer = tiles.buffer(&torch);
    let part = tiles.hidden(hidden);
    tiles.multiply("mm.out", [&part, &tiles.slice(weight)]);
    drop((part, buffer, whole));
    let log_z = {
        let _log = a_row("log");
        a_row("add.Tensor")
    };
    let log_probs = a_row("sub.Tensor");
    let entropy = {
        let _mean = a_row("div.Tensor");
        a_row("sub.Tensor")
    };
    drop(running);
    let inputs = [hidden, weight];
    if !recorded(&torch, &inputs) {
        return log_probs;
    }
    let saved = [hidden, weight, targets, &log_z, &entropy].map(Tensor::save);
    drop((log_z, entropy));
    let [hidden_needs, weight_needs] = inputs.map(Tensor::requires_grad);
    record(log_probs, &inputs, move |grad| {
        let [hidden, weight, _targets, _log_z, _entropy] = saved.each_ref().map(|saved| saved.unpack());
        let _whole = grad.torch().whole(&weight);
        let summed = |of: &Tensor| output(grad.torch(), "zeros", of.layout().packed(), Dtype::F32);
        let for_hidden = hidden_needs.then(|| summed(&hidden));
        let for_weight = weight_needs.then(|| summed(&weight));
        let buffer = tiles.buffer(grad.torch());
        let (part, slice) = (tiles.hidden(&hidden), tiles.slice(&weight));
        tiles.multiply("mm.out", [&part, &slice]);
        // while a tile's factors are made, those of the tile before still have their names
        let _next_part = (tiles.rows > TILE[0]).then(|| tiles.hidden(&hidden));
        let _next_slice = (tiles.vocabulary > TILE[1]).then(|| tiles.slice(&weight));
        for _ in [&for_hidden, &for_weight].into_iter().flatten() {
            tiles.multiply("addmm.out", [&buffer, &slice]);
        }
        let of = |sum: &Option<Tensor>, dtype| sum.as_ref().map(|sum| to(sum, dtype));
        let grads = smallvec![of(&for_hidden, hidden.dtype()), of(&for_weight, weight.dtype())];
        drop(buffer);
        grads
    })
}

/// How the product is cut. Tiles are alike, so one of them is made here, and all are counted as multiplied.
#[derive(Clone, Copy)]
struct Tiles {
    dtype: Dtype,
    rows: u64,
    vocabulary: u64,
    width: u64,
}

impl Tiles {
    fn of(hidden: &Tensor, weight: &Tensor) -> Tiles {
        let dtype = hidden.torch().autocast_dtype().unwrap_or(hidden.dtype());
        Tiles { dtype, rows: hidden.size(0), vocabulary: weight.size(0), width: weight.size(1) }
    }

    /// Where each tile of logits is written.
    fn buffer(self, torch: &Rc<Torch>) -> Tensor {
        let [rows, vocabulary] = TILE;
        output(
            torch,
            "empty.memory_format",
            Layout::contiguous(&[self.rows.min(rows), vocabulary]),
            self.dtype,
        )
    }

    /// So many rows of a factor in the type of the product; those of a tensor that has it are not copied.
    fn part(self, of: &Tensor, rows: u64) -> Tensor {
        to(of.detach().alias(Layout::contiguous(&[rows, self.width])), self.dtype)
    }

    /// Hidden states of a tile.
    fn hidden(self, hidden: &Tensor) -> Tensor {
        self.part(hidden, self.rows.min(TILE[0]))
    }

    /// Rows of the head of a tile.
    fn slice(self, weight: &Tensor) -> Tensor {
        self.part(weight, self.vocabulary.min(TILE[1]))
    }

    /// A product of every tile, written into what is there.
    fn multiply(self, op: &'static str, factors: [&Tensor; 2]) {
        let [first, _] = factors;
        let torch = first.torch();
        torch.launch(op);
        torch.cublas();
        let elements = self.rows.saturating_mul(self.vocabulary);
        torch.multiplies(product_flops(elements, self.width), self.dtype);
        torch.reads(&factors);
    }
}

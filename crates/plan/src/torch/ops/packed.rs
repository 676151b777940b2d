//! Sequences that transformers takes for packed, by the positions that it is passed, and the mask that keeps them apart
//! (`find_packed_sequence_indices` and `create_causal_mask`, `transformers/masking_utils.py`).

use super::indexing::arange;
use super::output;
use super::pointwise::like;
use crate::torch::{Dtype, Layout, Tensor};

/// Which sequence of its row each token is of, `[b, s]`, from its position.
pub(crate) fn packed_sequences(positions: &Tensor) -> Tensor {
    let torch = positions.torch();
    let [rows, length] = [positions.size(0), positions.size(1)];
    let _first = like("sub.Tensor", positions, Layout::contiguous(&[rows, 1]));
    let _differences = {
        let _prepended = like("cat", positions, Layout::contiguous(&[rows, length.saturating_add(1)]));
        like("sub.Tensor", positions, Layout::contiguous(&[rows, length]))
    };
    let sequences = {
        let _jumps = output(torch, "ne.Scalar", Layout::contiguous(&[rows, length]), Dtype::Bool);
        output(torch, "cumsum", Layout::contiguous(&[rows, length]), Dtype::Int64)
    };
    let _is_one = output(torch, "eq.Scalar", Layout::contiguous(&[rows]), Dtype::Bool);
    drop(output(torch, "all", Layout::contiguous(&[]), Dtype::Bool));
    sequences
}

/// Where a query may look, `[b, 1, s, s]` of booleans: at what is before it in its own sequence.
pub(crate) fn packed_mask(sequences: &Tensor, positions: &Tensor) -> Tensor {
    let torch = sequences.torch();
    let [rows, length] = [sequences.size(0), sequences.size(1)];
    let _rows = [arange(torch, rows), arange(torch, 1)];
    let counted = || {
        let counted = arange(torch, length);
        like("add.Tensor", &counted, counted.layout().clone())
    };
    let _places = [counted(), counted()];
    let square = Layout::contiguous(&[rows, 1, length, length]);
    let both = |_masks: [Tensor; 2]| output(torch, "bitwise_and.Tensor", square.clone(), Dtype::Bool);
    let compared = |op, of: &Tensor| {
        let queries = like("index.Tensor", of, Layout::contiguous(&[rows, 1, length, 1]));
        let _keys = like("index.Tensor", of, Layout::contiguous(&[rows, 1, 1, length]));
        let compared = output(torch, op, square.clone(), Dtype::Bool);
        torch.reads(&[&queries, &queries]);
        compared
    };
    let everything = output(torch, "new_ones", Layout::contiguous(&[]), Dtype::Bool);
    let causal = both([everything, compared("le.Tensor", positions)]);
    both([causal, compared("eq.Tensor", sequences)])
}

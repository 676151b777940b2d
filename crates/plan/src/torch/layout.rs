//! Shapes and strides: whether a reshape is free or a copy, and how an elementwise result lies in memory.
//!
//! Only what decides bytes is here: which op has to copy. The rules are torch's: `computeStride` in
//! `aten/src/ATen/TensorUtils.cpp` and `reorder_dimensions` in `aten/src/ATen/TensorIterator.cpp`. Products saturate: a
//! size past 64 bits is caught where it would be allocated.
#![allow(clippy::indexing_slicing)] // dimensions are below RANK by construction

use std::cell::RefCell;
use std::rc::Rc;

/// The most dimensions that any module here uses.
const RANK: usize = 5;

/// Sizes and strides in elements, shared by the tensors that have them: an elementwise result mostly takes its operand's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout(Rc<Shape>);

thread_local! {
    /// Row-major layouts that were asked for lately, by their sizes: a model has few, and asks for them again and again.
    static LATELY: RefCell<[Option<Layout>; 1 << SLOT_BITS]> = const { RefCell::new([const { None }; 1 << SLOT_BITS]) };
}

const SLOT_BITS: u32 = 7;

/// Where a row-major layout of those sizes is kept.
fn slot(sizes: &[u64]) -> usize {
    let mixed = |hash: u64, size: &u64| (hash ^ size).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(32);
    let hash = sizes.iter().fold(1, mixed);
    (hash & ((1 << SLOT_BITS) - 1)) as usize
}

impl Layout {
    /// Row-major.
    pub(crate) fn contiguous(sizes: &[u64]) -> Layout {
        LATELY.with_borrow_mut(|lately| match &mut lately[slot(sizes)] {
            Some(known) if known.sizes().iter().eq(sizes) => known.clone(),
            other => other.insert(Layout(Rc::new(Shape::contiguous(sizes)))).clone(),
        })
    }

    pub(crate) fn sizes(&self) -> &[u64] {
        self.0.sizes()
    }

    /// The size of a dimension; negative ones count from the end.
    pub(crate) fn size(&self, dim: isize) -> u64 {
        self.0.at(dim).and_then(|dim| self.sizes().get(dim)).copied().unwrap_or(1)
    }

    pub(crate) fn numel(&self) -> u64 {
        self.0.numel
    }

    /// The elements, those that are repeated by a stride of 0 counted once.
    pub(crate) fn elements_seen(&self) -> u64 {
        self.0.seen
    }

    pub(crate) fn has_sizes_of(&self, other: &Layout) -> bool {
        Rc::ptr_eq(&self.0, &other.0) || self.sizes() == other.sizes()
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        self.0.contiguous
    }

    /// The view with two dimensions swapped.
    pub(crate) fn transpose(&self, a: isize, b: isize) -> Layout {
        Layout(Rc::new(self.0.transpose(a, b)))
    }

    /// The view with a dimension of size 1 put in.
    pub(crate) fn unsqueeze(&self, dim: usize) -> Layout {
        Layout(Rc::new(self.0.unsqueeze(dim)))
    }

    /// The view with a dimension cut to `size`; negative ones count from the end.
    pub(crate) fn narrow(&self, dim: isize, size: u64) -> Layout {
        Layout(Rc::new(self.0.narrow(dim, size)))
    }

    /// The view with the last dimension cut to `size`.
    pub(crate) fn narrow_last(&self, size: u64) -> Layout {
        self.narrow(-1, size)
    }

    /// The view with every other element of the last dimension, half of them.
    pub(crate) fn every_other_last(&self) -> Layout {
        Layout(Rc::new(self.0.every_other_last()))
    }

    /// The view with dimensions of size 1 repeated by stride 0.
    pub(crate) fn expand(&self, sizes: &[u64]) -> Layout {
        Layout(Rc::new(self.0.expand(sizes)))
    }

    /// The same elements under other sizes, if that needs no copy.
    pub(crate) fn view(&self, sizes: &[u64]) -> Option<Layout> {
        match self.0.contiguous {
            true => Some(Layout::contiguous(sizes)).filter(|view| view.numel() == self.numel()),
            false => self.0.view(sizes).map(|shape| Layout(Rc::new(shape))),
        }
    }

    /// The same sizes in row-major order.
    pub(crate) fn packed(&self) -> Layout {
        if self.0.contiguous { self.clone() } else { Layout::contiguous(self.sizes()) }
    }

    /// How the result of an elementwise op over two tensors lies in memory: mostly as the first of them.
    pub(crate) fn broadcast(&self, other: &Layout) -> Layout {
        if self.0.dense && self.0.covers(&other.0) {
            return self.clone();
        }
        if self.0.contiguous && other.0.contiguous && other.0.covers(&self.0) {
            return other.clone();
        }
        Layout(Rc::new(self.0.broadcast(&other.0)))
    }

    /// How a copy that keeps the order of dimensions lies in memory (`torch.preserve_format`).
    pub(crate) fn preserved(&self) -> Layout {
        if self.0.dense {
            return self.clone();
        }
        Layout(Rc::new(Shape::like(self.sizes(), &[*self.0])))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    rank: u8,
    contiguous: bool,
    /// Whether its elements lie side by side, in whatever order of dimensions (`is_non_overlapping_and_dense`).
    dense: bool,
    sizes: [u64; RANK],
    strides: [u64; RANK],
    numel: u64,
    /// Elements but for those that are repeated by a stride of 0.
    seen: u64,
}

impl Shape {
    fn contiguous(sizes: &[u64]) -> Shape {
        debug_assert!(sizes.len() <= RANK, "a tensor of more dimensions than any module has");
        let (contiguous, dense, ones) = (true, true, [1; RANK]);
        let mut layout = Shape { rank: 0, contiguous, dense, sizes: ones, strides: ones, numel: 1, seen: 1 };
        for (slot, size) in layout.sizes.iter_mut().zip(sizes) {
            *slot = *size;
            layout.rank += 1;
        }
        let mut stride = 1;
        for dim in (0..layout.rank()).rev() {
            let size = layout.sizes[dim];
            layout.strides[dim] = stride;
            layout.numel = layout.numel.saturating_mul(size);
            stride = stride.saturating_mul(size.max(1));
        }
        layout.seen = layout.numel;
        layout
    }

    fn rank(&self) -> usize {
        usize::from(self.rank)
    }

    fn sizes(&self) -> &[u64] {
        &self.sizes[..self.rank()]
    }

    fn strides(&self) -> &[u64] {
        &self.strides[..self.rank()]
    }

    fn at(&self, dim: isize) -> Option<usize> {
        let rank = self.rank();
        if dim < 0 { rank.checked_sub(dim.unsigned_abs()) } else { Some(dim.unsigned_abs()) }
    }

    /// Once its sizes and strides are known: what follows from them.
    fn settle(self) -> Shape {
        let (mut contiguous, mut numel, mut seen) = (true, 1u64, 1u64);
        let mut last = 0u64; // the place of its last element
        for (size, stride) in self.sizes().iter().zip(self.strides()).rev() {
            if *size != 1 {
                contiguous &= *stride == numel;
                numel = numel.saturating_mul(*size);
                seen = seen.saturating_mul(if *stride == 0 { 1 } else { *size });
                last = last.saturating_add(size.saturating_sub(1).saturating_mul(*stride));
            }
        }
        // views of what lies side by side have no element twice but by a stride of 0
        let dense = contiguous || seen == numel && last.saturating_add(1) == numel;
        Shape { contiguous, dense, numel, seen, ..self }
    }

    /// Whether it has the sizes of the result of an op over both.
    fn covers(&self, other: &Shape) -> bool {
        let more = self.rank().checked_sub(other.rank());
        let inner = more.and_then(|more| self.sizes().get(more..));
        inner.is_some_and(|sizes| {
            sizes.iter().zip(other.sizes()).all(|(size, other)| other == size || *other == 1)
        })
    }

    fn transpose(mut self, a: isize, b: isize) -> Shape {
        if let (Some(a), Some(b)) = (self.at(a), self.at(b)) {
            self.sizes.swap(a, b);
            self.strides.swap(a, b);
        }
        self.settle()
    }

    fn unsqueeze(self, dim: usize) -> Shape {
        let mut layout = self;
        layout.sizes[dim..].rotate_right(1);
        layout.strides[dim..].rotate_right(1);
        layout.sizes[dim] = 1;
        layout.strides[dim] =
            if dim < self.rank() { self.strides[dim].saturating_mul(self.sizes[dim]) } else { 1 };
        layout.rank += 1;
        layout
    }

    fn narrow(mut self, dim: isize, size: u64) -> Shape {
        if let Some(dim) = self.at(dim) {
            self.sizes[dim] = size;
        }
        self.settle()
    }

    fn every_other_last(mut self) -> Shape {
        if let Some(last) = self.at(-1) {
            self.sizes[last] /= 2;
            self.strides[last] = self.strides[last].saturating_mul(2);
        }
        self.settle()
    }

    fn expand(mut self, sizes: &[u64]) -> Shape {
        for ((size, stride), wanted) in self.sizes.iter_mut().zip(&mut self.strides).zip(sizes) {
            if *size != *wanted {
                *size = *wanted;
                *stride = 0;
            }
        }
        self.settle()
    }

    fn view(&self, sizes: &[u64]) -> Option<Shape> {
        let mut view = Shape::contiguous(sizes);
        let mut wanted = view.rank();
        let mut base_stride = self.strides().last().copied().unwrap_or(1);
        let (mut run, mut taken) = (1u64, 1u64); // elements of the old run of dimensions, and of the new sizes laid over it
        for dim in (0..self.rank()).rev() {
            run = run.saturating_mul(self.sizes[dim]);
            let ends = dim == 0
                || (self.sizes[dim - 1] != 1 && self.strides[dim - 1] != run.saturating_mul(base_stride));
            if !ends {
                continue;
            }
            while wanted > 0 && (taken < run || view.sizes[wanted - 1] == 1) {
                wanted -= 1;
                view.strides[wanted] = taken.saturating_mul(base_stride);
                taken = taken.saturating_mul(view.sizes[wanted]);
            }
            if taken != run {
                return None;
            }
            if dim > 0 {
                base_stride = self.strides[dim - 1];
                (run, taken) = (1, 1);
            }
        }
        (wanted == 0).then(|| view.settle())
    }

    fn broadcast(&self, other: &Shape) -> Shape {
        let rank = self.rank().max(other.rank());
        let (a, b) = (self.pad_left(rank), other.pad_left(rank));
        let mut sizes = [1; RANK];
        for ((size, x), y) in sizes.iter_mut().zip(&a.sizes).zip(&b.sizes) {
            *size = if *x == 1 { *y } else { *x };
        }
        let operands = [a.expand(&sizes[..rank]), b.expand(&sizes[..rank])];
        Shape::like(&sizes[..rank], &operands)
    }

    fn pad_left(self, rank: usize) -> Shape {
        let mut layout = self;
        while layout.rank() < rank {
            layout = layout.unsqueeze(0);
        }
        layout
    }

    /// Dimensions sorted as their strides in the operands are, the fastest first; then packed in that order.
    fn like(sizes: &[u64], operands: &[Shape]) -> Shape {
        let rank = sizes.len();
        let mut order = [0, 1, 2, 3, 4];
        order[..rank].reverse();
        let slower = |a: usize, b: usize| -> i8 {
            for operand in operands {
                let (x, y) = (operand.strides[a], operand.strides[b]);
                if x == 0 || y == 0 {
                    continue;
                }
                if x != y {
                    return if x < y { -1 } else { 1 };
                }
                if sizes[a] > sizes[b] {
                    return 1;
                }
            }
            0
        };
        for i in 1..rank {
            let mut here = i;
            for before in (0..i).rev() {
                match slower(order[before], order[here]) {
                    1 => {
                        order.swap(before, here);
                        here = before;
                    }
                    -1 => break,
                    _ => {}
                }
            }
        }
        let mut layout = Shape::contiguous(sizes);
        let mut stride = 1;
        for dim in &order[..rank] {
            layout.strides[*dim] = stride;
            stride = stride.saturating_mul(sizes[*dim].max(1));
        }
        layout.settle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_one_sequence_merge_and_of_two_do_not() {
        // [b, s, h, d] seen as [b, h, s, d]: what `q_proj(x).view(…).transpose(1, 2)` gives
        let heads = |batch| Layout::contiguous(&[batch, 7, 4, 8]).transpose(1, 2);
        assert!(heads(1).view(&[4, 7, 8]).is_some());
        assert!(heads(2).view(&[8, 7, 8]).is_none());
        assert!(!heads(1).is_contiguous());
        assert!(heads(2).transpose(1, 2).is_contiguous());
    }

    #[test]
    fn an_elementwise_result_lies_as_its_first_operand() {
        let heads = Layout::contiguous(&[1, 7, 4, 8]).transpose(1, 2);
        let table = Layout::contiguous(&[1, 1, 7, 8]);
        assert_eq!(heads.broadcast(&table).0.strides(), heads.0.strides());
        let packed = Layout::contiguous(&[1, 4, 7, 8]);
        assert_eq!(packed.broadcast(&heads), packed);
        assert_eq!(heads.broadcast(&packed).0.strides(), heads.0.strides());
        let row = Layout::contiguous(&[8]);
        assert_eq!(row.broadcast(&packed), packed);
    }

    #[test]
    fn repeated_heads_need_a_copy() {
        let kv = Layout::contiguous(&[1, 2, 7, 8]).unsqueeze(2).expand(&[1, 2, 3, 7, 8]);
        assert_eq!(kv.sizes(), [1, 2, 3, 7, 8]);
        assert!(kv.view(&[1, 6, 7, 8]).is_none());
        assert_eq!(kv.numel(), 336);
    }
}

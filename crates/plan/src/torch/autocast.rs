//! Autocast: a cast at the door of an op, and the cache that keeps the casts of parameters until the region ends
//! (`aten/src/ATen/autocast_mode.cpp`).

use super::tape::CopiedFor;
use super::{Dtype, Tensor, Torch, ops};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The running autocast region.
pub(crate) struct Autocast {
    dtype: Dtype,
    /// Casts of fp32 leaves that need a gradient, by storage.
    cache: BTreeMap<u32, Tensor>,
}

impl Torch {
    /// Runs `body` under `torch.autocast` to that type; without one, plainly.
    pub(crate) fn autocast<T>(&self, dtype: Option<Dtype>, body: impl FnOnce() -> T) -> T {
        let Some(dtype) = dtype else { return body() };
        if self.autocast.borrow().is_some() {
            return body(); // nested in a region of the same type: the cache goes on
        }
        *self.autocast.borrow_mut() = Some(Autocast { dtype, cache: BTreeMap::new() });
        let result = body();
        let ended = self.autocast.borrow_mut().take();
        drop(ended); // the cached casts go here
        result
    }

    /// The type of the running region.
    pub(crate) fn autocast_dtype(&self) -> Option<Dtype> {
        self.autocast.borrow().as_ref().map(|region| region.dtype)
    }
}

/// The tensor as an op of the fp32 list takes it (norms, softmax).
pub(crate) fn raised(tensor: &Tensor) -> Tensor {
    match tensor.torch().autocast_dtype() {
        Some(_) if tensor.dtype().is_half() => ops::to(tensor, Dtype::F32),
        _ => tensor.clone(),
    }
}

/// The tensor as a lower-precision op takes it (`cached_cast`).
pub(crate) fn lowered(tensor: &Tensor) -> Tensor {
    let torch: &Rc<Torch> = tensor.torch();
    let Some(dtype) = torch.autocast_dtype() else { return tensor.clone() };
    if !tensor.dtype().is_float() || tensor.dtype() == dtype {
        return tensor.clone();
    }
    let cached = tensor.dtype() == Dtype::F32 && tensor.edge().is_some_and(|edge| edge.is_leaf());
    if !cached {
        return ops::to(tensor, dtype);
    }
    let key = tensor.storage_id().0;
    let hit = torch.autocast.borrow().as_ref().and_then(|region| region.cache.get(&key).cloned());
    hit.unwrap_or_else(|| {
        let cast = ops::to(tensor, dtype);
        cast.relabel(|stored| stored.copied_for = Some(CopiedFor::Autocast));
        if let Some(region) = torch.autocast.borrow_mut().as_mut() {
            region.cache.insert(key, cast.clone());
        }
        cast
    })
}

//! Keys and values that a decoding model keeps of the tokens before: `DynamicCache` (`transformers/cache_utils.py`). Each
//! layer's are two tensors; a step puts its own behind them in two new ones, and the old ones go.

use super::{Tensor, Torch, ops};
use std::rc::Rc;

/// What its tensors are called on the tape.
pub(crate) const KV_CACHE: &str = "KV cache";

/// The cache of a model, in the order of its layers.
pub(crate) struct KvCache {
    /// How many tokens each layer looks at, where that is limited.
    windows: Vec<Option<u64>>,
    layers: Vec<[Tensor; 2]>,
    /// The layer whose turn it is.
    turn: usize,
}

impl KvCache {
    /// An empty cache of layers with these windows.
    pub(crate) fn new(windows: Vec<Option<u64>>) -> KvCache {
        KvCache { windows, layers: Vec::new(), turn: 0 }
    }

    /// How many tokens a layer keeps of so many: all but one of its window (`DynamicSlidingWindowLayer.update`).
    fn kept(&self, layer: usize, tokens: u64) -> u64 {
        let window = self.windows.get(layer).copied().flatten();
        window.map_or(tokens, |window| tokens.min(window.saturating_sub(1)))
    }

    /// What a layer's tensors are long when so many tokens have passed: a step's token lies behind what is kept.
    fn longest(&self, layer: usize, tokens: u64) -> u64 {
        self.kept(layer, tokens.saturating_sub(1)).saturating_add(1)
    }
}

impl Torch {
    /// The keys and values `[b, h, s, d]` of the layer whose turn it is, behind those that it keeps; as they are where
    /// nothing is kept.
    pub(crate) fn cached(self: &Rc<Self>, keys: &Tensor, values: &Tensor) -> (Tensor, Tensor) {
        let Some(mut cache) = self.kv_cache.borrow_mut().take() else {
            return (keys.clone(), values.clone());
        };
        let layer = cache.turn;
        let before = cache.layers.get(layer).map_or(0, |[keys, _]| cache.kept(layer, keys.size(2)));
        let grown = |new: &Tensor| ops::grown(new, before.saturating_add(new.size(2)));
        let keys = grown(keys);
        // a layer without a window takes its keys before the values are made
        if cache.windows.get(layer) == Some(&None)
            && let Some([kept, _]) = cache.layers.get_mut(layer)
        {
            *kept = keys.clone();
        }
        let values = grown(values);
        let both = [keys.clone(), values.clone()];
        match cache.layers.get_mut(layer) {
            Some(kept) => *kept = both,
            None => cache.layers.push(both),
        }
        cache.turn = if layer + 1 == cache.windows.len() { 0 } else { layer + 1 };
        *self.kv_cache.borrow_mut() = Some(cache);
        (keys, values)
    }

    /// The cache after as many steps as bring it to so many tokens, of which the last is the largest.
    pub(crate) fn grow_cache(self: &Rc<Self>, tokens: u64) {
        let Some(mut cache) = self.kv_cache.borrow_mut().take() else { return };
        let kept: Vec<u64> = (0..cache.layers.len()).map(|layer| cache.longest(layer, tokens)).collect();
        for (layer, tokens) in cache.layers.iter_mut().zip(kept) {
            for tensor in layer {
                *tensor = ops::grown(tensor, tokens);
            }
        }
        *self.kv_cache.borrow_mut() = Some(cache);
    }
}

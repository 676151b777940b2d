//! How far a layer reaches into others under ZeRO 3: whether they may be alike at all, and how many of them at each end are not.

use super::ZeroSizes;
use super::fetching::SOON;
use crate::nn::Parameter;
use crate::torch::Tape;
use std::collections::BTreeMap;

/// How many layers ahead of the one that runs parameters may come, up to as many as may be there at once, or stay because they
/// are used again soon. Nothing where a layer trains fewer numbers than a bucket of gradients has: such a bucket is full at another
/// place of each layer.
pub(crate) fn layers_ahead(tape: &Tape, parameters: &[Parameter], sizes: &ZeroSizes) -> Option<usize> {
    let mut layers: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for parameter in parameters {
        let Some(layer) = tape.layer(parameter.module) else { continue };
        let numbers = parameter.tensor.layout().numel();
        let (all, trained) = layers.entry(layer).or_default();
        *all = all.saturating_add(numbers);
        *trained = trained.saturating_add(if parameter.leaf.is_some() { numbers } else { 0 });
    }
    let all = layers.values().map(|(all, _)| *all).min()?;
    let trained = layers.values().map(|(_, trained)| *trained).min()?;
    let farthest = SOON.max(sizes.max_live_parameters).saturating_add(sizes.prefetch_bucket_size);
    (trained >= sizes.reduce_bucket_size).then(|| usize::try_from(farthest.div_ceil(all.max(1))).ok())?
}

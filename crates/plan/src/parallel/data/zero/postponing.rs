//! Gradients that have come while layers are left out: buckets are full at other places of each layer, and of other ranks'
//! parts, so what fills them is caught up with once all layers are known.

use super::Zero;
use super::buckets::Running;
use std::collections::BTreeMap;

impl Zero {
    /// Has what arrived, in layers that were run and in those that were not, fill the buckets.
    pub(super) fn fill_with_arrived(&self, running: &mut Running) {
        let arrived = self.torch.with_left_out(std::mem::take(&mut running.arrived));
        let last_and_large = running.large.take();
        let firsts = self.firsts_of_layers();
        self.torch.does_postponed(arrived, |(layers_later, (numbers, index))| {
            let index = self.later_by(layers_later, index, &firsts).unwrap_or(index);
            let Some(placed) = self.parameters.get(index) else { return };
            self.torch.said_of(placed.parameter.module, || self.make_room(running, numbers, index));
        });
        running.large = last_and_large;
    }

    /// The parameter that is in a layer so many later what that one is in its own; nothing where it is in none.
    fn later_by(&self, layers: usize, index: usize, firsts: &BTreeMap<usize, usize>) -> Option<usize> {
        let layer = self.parameters.get(index)?.layer?;
        Some(index + firsts.get(&(layer + layers))? - firsts.get(&layer)?)
    }

    /// The first parameter of each layer.
    fn firsts_of_layers(&self) -> BTreeMap<usize, usize> {
        let mut firsts = BTreeMap::new();
        for (index, placed) in self.parameters.iter().enumerate() {
            if let Some(layer) = placed.layer {
                firsts.entry(layer).or_insert(index);
            }
        }
        firsts
    }
}

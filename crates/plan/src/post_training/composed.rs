//! What a timeline of many tapes is asked: its ledger, and who stands on the device at a moment.

use crate::Contributor;
use crate::contributors::{GroupKey, name};
use peakledger_core::{Bytes, Device, Ledger, Moment};
use std::collections::BTreeMap;

/// What stands between the name of a model, or of a phase, and that of a state.
pub(super) const OF: &str = ": ";

/// The model, or the phase, that a state of a composed ledger is of.
pub(super) fn of_model(name: &str) -> Option<&str> {
    name.split_once(OF).map(|(of, _)| of)
}

/// The ledger, with what is said of its phases and states.
#[derive(Debug)]
pub(super) struct Composed {
    pub(super) ledger: Ledger,
    pub(super) peak_ops: Vec<Option<Box<str>>>,
    /// Of each state.
    pub(super) groups: Vec<Group>,
}

/// What a state is grouped under.
#[derive(Clone, Debug)]
pub(super) enum Group {
    /// Storages of a tape.
    Storage { of: &'static str, key: GroupKey, layer: Option<u32> },
    /// What has its name here.
    Named(&'static str),
}

impl Composed {
    /// Who stands on the device at a moment, grouped, largest first, then by name.
    pub(super) fn contributors(&self, moment: Moment) -> Vec<Contributor> {
        type Key = (&'static str, Option<GroupKey>);
        let mut sums: BTreeMap<Key, (Contributor, Option<(u32, u32)>)> = BTreeMap::new();
        for (id, state) in self.ledger.resident(Device::Gpu, moment) {
            let (key, layer) = match self.groups.get(id.0 as usize) {
                Some(Group::Storage { of, key, layer }) => ((*of, Some(*key)), *layer),
                Some(Group::Named(name)) => ((*name, None), None),
                None => continue,
            };
            let empty = || {
                let (category, detail) = (state.category, state.detail);
                (Contributor { name: String::new(), category, detail, bytes: Bytes::ZERO, count: 0 }, None)
            };
            let (sum, layers) = sums.entry(key).or_insert_with(empty);
            sum.bytes = Bytes::new(sum.bytes.get() + state.bytes.get()); // part of a total that fits
            sum.count += 1;
            if let Some(layer) = layer {
                let (first, last) = layers.unwrap_or((layer, layer));
                *layers = Some((first.min(layer), last.max(layer)));
            }
        }
        let named = |((of, key), (sum, layers)): (Key, (Contributor, Option<(u32, u32)>))| Contributor {
            name: key.map_or_else(|| of.to_owned(), |key| format!("{of} · {}", name(key, layers))),
            ..sum
        };
        let mut list: Vec<Contributor> = sums.into_iter().map(named).collect();
        list.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        list
    }
}

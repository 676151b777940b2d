//! Blocks put together by what made them: the user's line, or the whole stack.

use crate::replay::Live;
use crate::snapshot::StackId;
use crate::user::{Owner, UserLines};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Blocks of one maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<K> {
    /// Who made them.
    pub key: K,
    /// What was asked for, in bytes.
    pub requested: u64,
    /// The blocks' bytes.
    pub size: u64,
    /// How many there are.
    pub blocks: u64,
}

/// Blocks by the user's line, the largest first.
pub fn by_owner(live: &[Live], lines: &UserLines<'_>) -> Vec<Group<Owner>> {
    grouped(live, |live| lines.owner(live.stack, live.event.is_some()))
}

/// Blocks by stack, the largest first.
pub fn by_stack(live: &[Live]) -> Vec<Group<StackId>> {
    grouped(live, |live| live.stack)
}

fn grouped<K: Copy + Ord>(live: &[Live], key: impl Fn(&Live) -> K) -> Vec<Group<K>> {
    let mut groups: BTreeMap<K, Group<K>> = BTreeMap::new();
    for one in live {
        let key = key(one);
        let group = groups.entry(key).or_insert(Group { key, requested: 0, size: 0, blocks: 0 });
        group.requested = group.requested.saturating_add(one.requested); // part of a total that fits
        group.size = group.size.saturating_add(one.size);
        group.blocks += 1;
    }
    let mut groups: Vec<Group<K>> = groups.into_values().collect();
    groups.sort_by_key(|group| (Reverse(group.requested), group.key));
    groups
}

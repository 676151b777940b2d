//! Ledger files: the records as they stand in JSON, and the way from them to a [`Ledger`] and back.
//!
//! Two forms are read: the seed's array of states, and a document with a schema number, an own timeline, states with
//! several residencies, and named candidates. The text itself is parsed elsewhere; here records become ledgers.

use crate::{
    Bytes, Category, Detail, Device, Ledger, LedgerError, LedgerErrorKind, Moment, Phase, Residencies,
    Residency, Slot, State, StateId, Timeline,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// The schema number that this version writes and the newest it reads.
pub const SCHEMA: u32 = 1;

/// A ledger file in the document form.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The schema of this file: 1.
    pub schema_version: u32,
    /// What made the file, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The phases in order. Left out: `load, forward, loss, backward, update, zero_grad`, one moment each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Vec<PhaseRecord>>,
    /// The states.
    pub states: Vec<StateRecord>,
    /// Other versions of the states on the same timeline, by name, to be compared with `states`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub candidates: BTreeMap<String, Vec<StateRecord>>,
}

/// One phase of an own timeline.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PhaseRecord {
    /// What happens: a standard phase or a word of one's own.
    pub phase: String,
    /// Which micro-batch, counted from 0, where the step has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u32>,
    /// How many moments it takes (1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moments: Option<NonZeroU32>,
    /// What runs at the moment at which the phase is largest, where it is known: `model.layers.3.mlp: silu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_op: Option<String>,
}

/// One state. Either `device`, `start_phase` and `end_phase` stand here (the seed's form) or `residencies` does.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StateRecord {
    /// Its name, unique in the ledger.
    pub name: String,
    /// Its kind.
    pub category: Category,
    /// A finer word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
    /// Its size in MiB (2^20 bytes), rounded to the nearest byte. Either this or `size_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_mb: Option<f64>,
    /// Its size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The first phase in which it is there, by name: `forward`, or `forward.1` for a micro-batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_phase: Option<String>,
    /// The last phase in which it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_phase: Option<String>,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// Whether it lives from step to step.
    pub persistent: bool,
    /// Several stays, or one that begins or ends inside a phase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residencies: Vec<ResidencyRecord>,
}

/// One stay of a state on a device. Both ends count.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResidencyRecord {
    /// Where it is.
    pub device: Device,
    /// The first phase of the stay: `forward`, or `forward.1` for a micro-batch.
    pub start_phase: String,
    /// The moment in that phase, counted from 0 (the phase's first).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_moment: Option<u32>,
    /// The last phase of the stay.
    pub end_phase: String,
    /// The moment in that phase, counted from 0 (the phase's last).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_moment: Option<u32>,
}

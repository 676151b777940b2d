//! Ledger files: the records as JSON has them, and the way from them to a [`Ledger`](crate::Ledger) and back.
//!
//! Two forms are read: the seed's array of states, and a document with a schema number, a timeline of its own, states with
//! several residencies, and named candidates. The text itself is parsed elsewhere; here records become ledgers
//! ([`LedgerFile`]) and ledgers become records ([`Document::from_ledger`]).
//!
//! Records borrow their words from the text. Fields that begin with `x-` are for anyone's use and are passed over; every
//! other unknown field is refused.

mod error;
mod fields;
mod read;
#[cfg(feature = "schema")]
mod schema;
mod write;

pub use error::{RecordError, RecordErrorKind};
pub use fields::{Candidates, Text};
#[cfg(feature = "schema")]
pub use schema::schema;

pub use read::{Form, LedgerFile, MOST_MOMENTS, SeedForm};

use crate::{Category, Detail, Device};
use serde::Serialize;
use std::num::NonZeroU32;

/// The schema number that this version writes and the newest it reads.
pub const SCHEMA: u32 = 1;

/// A ledger file in the document form.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields, extend("patternProperties" = {"^x-": true})))]
pub struct Document<'a> {
    /// The schema of this file: 1.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1)))]
    pub schema_version: u32,
    /// What made the file, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Text<'a>>,
    /// Why it is only a part of what there was, where it is: made of the sound part of a damaged file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<Text<'a>>,
    /// The phases in order. Left out: `load, forward, loss, backward, update, zero_grad`, one moment each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub timeline: Option<Vec<PhaseRecord<'a>>>,
    /// The states.
    pub states: Vec<StateRecord<'a>>,
    /// Other versions of the states on the same timeline, by name, to be compared with `states`.
    #[serde(default, skip_serializing_if = "Candidates::is_empty")]
    pub candidates: Candidates<'a>,
}

/// One phase of a timeline of one's own.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields, extend("patternProperties" = {"^x-": true})))]
pub struct PhaseRecord<'a> {
    /// What happens: a standard phase or a word of one's own.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub phase: Text<'a>,
    /// Which micro-batch, counted from 0, where the step has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u32>,
    /// How many moments it takes (1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moments: Option<NonZeroU32>,
    /// What runs at the moment at which the phase is largest, where it is known: `model.layers.3.mlp: silu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_op: Option<Text<'a>>,
}

/// One state. It has either `device`, `start_phase` and `end_phase` (the seed's form) or `residencies`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    schemars(
        deny_unknown_fields,
        extend("patternProperties" = {"^x-": true}),
        extend("allOf" = [
            {"oneOf": [{"required": ["size_mb"]}, {"required": ["size_bytes"]}]},
            {"oneOf": [
                {
                    "required": ["residencies"],
                    "properties": {"device": false, "start_phase": false, "end_phase": false}
                },
                {"required": ["device", "start_phase", "end_phase"], "properties": {"residencies": false}}
            ]}
        ])
    )
)]
pub struct StateRecord<'a> {
    /// Its name, unique in the ledger.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub name: Text<'a>,
    /// Its kind.
    pub category: Category,
    /// A finer word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
    /// Its size in MiB (2^20 bytes), rounded to the nearest byte. Either this or `size_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub size_mb: Option<f64>,
    /// Its size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The first phase in which it is there, by name: `forward`, or `forward.1` for a micro-batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_phase: Option<Text<'a>>,
    /// The last phase in which it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_phase: Option<Text<'a>>,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// Whether it lives from step to step.
    pub persistent: bool,
    /// Several residencies, or one that begins or ends inside a phase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub residencies: Vec<ResidencyRecord<'a>>,
}

/// One residency of a state on a device. Both ends count.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields, extend("patternProperties" = {"^x-": true})))]
pub struct ResidencyRecord<'a> {
    /// Where it is.
    pub device: Device,
    /// The first phase of the residency: `forward`, or `forward.1` for a micro-batch.
    pub start_phase: Text<'a>,
    /// The moment in that phase, counted from 0 (the phase's first).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_moment: Option<u32>,
    /// The last phase of the residency.
    pub end_phase: Text<'a>,
    /// The moment in that phase, counted from 0 (the phase's last).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_moment: Option<u32>,
}

//! The JSON Schema of ledger files, from the record types themselves.

use super::{Document, StateRecord};
use schemars::{Schema, SchemaGenerator, generate::SchemaSettings, json_schema};

/// The schema of both forms: a list of states, or a document.
pub fn schema() -> Schema {
    let mut generator = SchemaGenerator::new(SchemaSettings::draft2020_12());
    let states = generator.subschema_for::<Vec<StateRecord<'static>>>();
    let document = generator.subschema_for::<Document<'static>>();
    let mut schema = json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A peakledger ledger",
        "description": "A list of states on the six standard phases, or a document with a timeline and candidates.",
        "oneOf": [states, document]
    });
    schema.insert("$defs".to_owned(), generator.take_definitions(true).into());
    schema
}

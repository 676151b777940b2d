//! Ledger files that are read and ledger files that are refused: what, where, and with what advice.

use peakledger_core::document::LedgerFile;
use peakledger_core::{Bytes, Device, Phase};
use peakledger_input::{Place, Problem, Source, read_ledger};

/// A state of the seed's form with other fields after or in place of its own.
macro_rules! state {
    ($size:literal, $from:literal, $to:literal, $device:literal, $more:literal) => {
        concat!(
            r#"{"name": "a", "category": "activation", "#,
            $size,
            r#", "start_phase": ""#,
            $from,
            r#"", "end_phase": ""#,
            $to,
            r#"", "device": ""#,
            $device,
            r#"", "persistent": false"#,
            $more,
            "}"
        )
    };
}

/// A state with residencies, in a document.
macro_rules! stays {
    ($stays:literal) => {
        concat!(
            r#"{"schema_version": 1, "timeline": [{"phase": "rollout", "moments": 4}, {"phase": "update"}], "states": ["#,
            r#"{"name": "a", "category": "activation", "size_bytes": 8, "persistent": false, "residencies": ["#,
            $stays,
            "]}]}"
        )
    };
}

macro_rules! size {
    ($size:literal) => {
        concat!("[", state!($size, "load", "load", "gpu", ""), "]")
    };
}

pub(crate) const VALID: &[(&str, &str)] = &[
    ("an empty list", "[]"),
    ("one state", size!(r#""size_mb": 1.5"#)),
    ("a size in bytes", size!(r#""size_bytes": 18446744073709551615"#)),
    ("an integer for MiB", size!(r#""size_mb": 3"#)),
    ("nothing at all in size", size!(r#""size_mb": 0"#)),
    (
        "one phase is a residency",
        concat!("[", state!(r#""size_mb": 1"#, "backward", "backward", "cpu", ""), "]"),
    ),
    (
        "own fields",
        concat!("[", state!(r#""size_mb": 1"#, "load", "load", "gpu", r#", "x-why": {"deep": [1]}"#), "]"),
    ),
    ("an empty document", r#"{"schema_version": 1, "states": [], "x-tool": "by hand"}"#),
    (
        "residencies",
        stays!(r#"{"device": "gpu", "start_phase": "rollout", "end_phase": "update", "start_moment": 3}"#),
    ),
    (
        "micro-batches and candidates",
        r#"{"schema_version": 1, "note": "two micro-batches",
            "timeline": [{"phase": "forward", "micro_batch": 0}, {"phase": "backward", "micro_batch": 0},
                         {"phase": "forward", "micro_batch": 1}, {"phase": "backward", "micro_batch": 1, "peak_op": "mlp: silu"},
                         {"phase": "update"}],
            "states": [
              {"name": "w", "category": "parameter", "size_bytes": 100, "device": "gpu", "start_phase": "forward", "end_phase": "update", "persistent": true},
              {"name": "act.1", "category": "activation", "detail": "saved_tensor", "size_bytes": 10, "device": "gpu", "start_phase": "forward.1", "end_phase": "backward.1", "persistent": false},
              {"name": "grad", "category": "gradient", "size_bytes": 5, "device": "gpu", "start_phase": "backward", "end_phase": "backward", "persistent": false}
            ],
            "candidates": {"no gradients": [
              {"name": "w", "category": "parameter", "size_bytes": 100, "device": "gpu", "start_phase": "forward", "end_phase": "update", "persistent": true}
            ]}}"#,
    ),
];

/// A file that is refused: the place, words of the cause, words of the mend.
pub(crate) struct Invalid {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    pub(crate) pointer: &'static str,
    pub(crate) says: &'static str,
    pub(crate) mend: &'static str,
}

macro_rules! invalid {
    ($($name:literal: $text:expr, $pointer:literal, $says:literal, $mend:literal;)*) => {
        &[$(Invalid { name: $name, text: $text, pointer: $pointer, says: $says, mend: $mend },)*]
    };
}

pub(crate) const INVALID: &[Invalid] = invalid! {
    // the seed's own rules
    "negative size": size!(r#""size_mb": -1.0"#), "/0/size_mb", "`size_mb` is negative (-1.0)", "0 or more";
    "unknown category": r#"[{"category": "activaton"}]"#, "/0/category", "unknown category `activaton`", "`activation`?";
    "unknown device": concat!("[", state!(r#""size_mb": 1"#, "load", "load", "tpu", ""), "]"),
        "/0/device", "unknown device `tpu`", "known are `gpu`, `cpu`";
    "end before start": concat!("[", state!(r#""size_mb": 1"#, "backward", "forward", "gpu", ""), "]"),
        "/0/end_phase", "ends in phase `forward`, before it starts in `backward`", "swap";
    "unknown phase": concat!("[", state!(r#""size_mb": 1"#, "load", "bakward", "gpu", ""), "]"),
        "/0/end_phase", "unknown phase `bakward`", "did you mean `backward`?";
    "a missing field": r#"[{"category": "activation", "size_mb": 1, "start_phase": "load", "end_phase": "load", "device": "gpu", "persistent": true}]"#,
        "/0", "`name` is missing", "add `name`";
    "a missing device": r#"[{"name": "a", "category": "activation", "size_mb": 1, "start_phase": "load", "end_phase": "load", "persistent": true}]"#,
        "/0", "`device` is missing", "`residencies`";
    "a number for a boolean": r#"[{"persistent": 1}]"#, "/0/persistent", "`persistent` is 1", "write `true` or `false`";
    // numbers that are none
    "a string for a size": size!(r#""size_mb": "1.0""#), "/0/size_mb", "is the string \"1.0\"", "remove the quotes";
    "a boolean for a size": size!(r#""size_mb": true"#), "/0/size_mb", "`size_mb` is `true`", "write a number";
    "a list for a size": size!(r#""size_mb": [1]"#), "/0/size_mb", "`size_mb` is a list", "write a number";
    "NaN": size!(r#""size_mb": NaN"#), "/0/size_mb", "`NaN` is not JSON", "allow_nan=False";
    "Infinity": size!(r#""size_mb": Infinity"#), "/0/size_mb", "`Infinity` is not JSON", "no such number";
    "minus Infinity": size!(r#""size_mb": -Infinity"#), "/0/size_mb", "`-Infinity` is not JSON", "no such number";
    "a number out of range": size!(r#""size_mb": 1e999"#), "/0/size_mb", "out of range", "1.8e308";
    "a size past 64 bits in MiB": size!(r#""size_mb": 17592186044416"#), "/0/size_mb", "does not fit into 64 bits", "MiB";
    "a size past 64 bits": size!(r#""size_bytes": 18446744073709551616"#), "/0/size_bytes", "does not fit into 64 bits", "below 2^64";
    "half a byte": size!(r#""size_bytes": 1.5"#), "/0/size_bytes", "`size_bytes` is 1.5", "whole number";
    "negative bytes": size!(r#""size_bytes": -5"#), "/0/size_bytes", "`size_bytes` is negative (-5)", "0 or more";
    "a string for bytes": size!(r#""size_bytes": "5""#), "/0/size_bytes", "is the string \"5\"", "remove the quotes";
    "both sizes": size!(r#""size_mb": 1, "size_bytes": 1048576"#), "/0", "both `size_mb` and `size_bytes`", "keep one";
    "no size": size!(r#""x-size": 1"#), "/0", "no size", "`size_mb`";
    "no size but null": size!(r#""size_mb": null"#), "/0", "no size", "`size_mb`";
    // names, fields, keys
    "a name twice": concat!("[", state!(r#""size_mb": 1"#, "load", "load", "gpu", ""), ",\n", state!(r#""size_mb": 2"#, "loss", "loss", "gpu", ""), "]"),
        "/1/name", "two states are named `a` (the first is state 0)", "rename one";
    "an empty name": r#"[{"name": "", "category": "activation", "size_mb": 1, "start_phase": "load", "end_phase": "load", "device": "gpu", "persistent": true}]"#,
        "/0/name", "empty name", "give the state a name";
    "an unknown field": r#"[{"byts": 1}]"#, "/0/byts", "unknown field `byts`", "did you mean `size_bytes`?";
    "a key twice": r#"[{"name": "a", "name": "b"}]"#, "/0/name", "`name` appears twice (first in line 1, column 3)", "keep one";
    "a state that is a number": "[3]", "/0", "the value is 3", "an object";
    // the document form
    "a newer version": r#"{"schema_version": 3, "states": [], "future": 1}"#, "/schema_version", "written by a newer version (3 > 1)", "update peakledger";
    "version 0": r#"{"schema_version": 0, "states": []}"#, "/schema_version", "no `schema_version` 0", "this version";
    "no version": r#"{"states": []}"#, "", "`schema_version` is missing", "add `\"schema_version\": 1`";
    "a version in words": r#"{"schema_version": "1", "states": []}"#, "/schema_version", "is the string \"1\"", "remove the quotes";
    "no states": r#"{"schema_version": 1}"#, "", "`states` is missing", "add `states`";
    "no phases": r#"{"schema_version": 1, "timeline": [], "states": []}"#, "/timeline", "no phases", "leave `timeline` out";
    "a phase twice": r#"{"schema_version": 1, "timeline": [{"phase": "a"}, {"phase": "a"}], "states": []}"#,
        "/timeline/1/phase", "phase `a` appears twice", "another name";
    "a phase without a name": r#"{"schema_version": 1, "timeline": [{"phase": ""}], "states": []}"#, "/timeline/0/phase", "empty name", "a name";
    "a phase without moments": r#"{"schema_version": 1, "timeline": [{"phase": "a", "moments": 0}], "states": []}"#,
        "/timeline/0/moments", "`moments` is 0", "1 or more";
    "an endless timeline": r#"{"schema_version": 1, "timeline": [{"phase": "a", "moments": 4294967295}], "states": []}"#,
        "/timeline/0/moments", "more than 16777216 moments", "fewer";
    "candidates on a long timeline": r#"{"schema_version": 1, "timeline": [{"phase": "a", "moments": 8388608}], "states": [], "candidates": {"b": [], "c": []}}"#,
        "/candidates", "the states and 2 candidates on 8388608 moments each are more than 16777216 moments", "files of their own";
    "a candidate without a name": r#"{"schema_version": 1, "states": [], "candidates": {"": []}}"#, "/candidates/", "empty name", "a name";
    "a candidate's name twice": r#"{"schema_version": 1, "states": [], "candidates": {"b": [], "b": []}}"#, "/candidates/b", "`b` appears twice", "keep one";
    "an error in a candidate": concat!(r#"{"schema_version": 1, "states": [], "candidates": {"a/b": ["#, state!(r#""size_mb": -3"#, "load", "load", "gpu", ""), "]}}"),
        "/candidates/a~1b/0/size_mb", "`size_mb` is negative (-3.0)", "0 or more";
    "overlapping residencies": stays!(r#"{"device": "gpu", "start_phase": "rollout", "end_phase": "rollout"}, {"device": "gpu", "start_phase": "rollout", "start_moment": 3, "end_phase": "update"}"#),
        "/states/0/residencies/1", "residencies 0 and 1 overlap", "end the first residency";
    "a moment outside its phase": stays!(r#"{"device": "gpu", "start_phase": "rollout", "end_phase": "rollout", "end_moment": 4}"#),
        "/states/0/residencies/0/end_moment", "moment 4 is outside phase `rollout`, which has 4 moments (0 to 3)", "counted from 0";
    "unknown phase of a residency": stays!(r#"{"device": "gpu", "start_phase": "rollout", "end_phase": "updat"}"#),
        "/states/0/residencies/0/end_phase", "unknown phase `updat`", "did you mean `update`?";
    "residencies and the seed's form": r#"{"schema_version": 1, "states": [{"name": "a", "category": "activation", "size_bytes": 8, "persistent": false, "device": "gpu", "residencies": [{"device": "gpu", "start_phase": "load", "end_phase": "load"}]}]}"#,
        "/states/0", "has `residencies`, and a `device`", "keep either";
    "no residency at all": r#"{"schema_version": 1, "states": [{"name": "a", "category": "activation", "size_bytes": 8, "persistent": false}]}"#,
        "/states/0", "nothing says when and where", "`residencies`";
    "a sum past 64 bits": concat!("[", r#"{"name": "b", "category": "activation", "size_bytes": 18446744073709551615, "start_phase": "load", "end_phase": "loss", "device": "gpu", "persistent": false},"#,
        state!(r#""size_bytes": 1"#, "loss", "loss", "gpu", ""), "]"), "", "phase `loss` passes 64 bits", "2^64 bytes";
    // words with what serde's sentences are made of
    "an unknown field with a comma": r#"[{"a, `b": 1}]"#, "/0/a, `b", "unknown field `a, `b`", "known are `name`, `category`, `persistent`, ";
    "an unknown field in backticks": r#"[{"`x`": 1}]"#, "/0/`x`", "unknown field ``x``", "known are `name`, ";
    "an unknown field with serde's words": r#"[{"x`, expected one of `y`": 1}]"#, "/0/x`, expected one of `y`", "expected one of `y``", "known are `name`, ";
    "an unknown category with a comma": r#"[{"category": "a`, b"}]"#, "/0/category", "unknown category `a`, b`", "known are `parameter`, `master_weight`, ";
    "text with a minus for a size": size!(r#""size_bytes": "`-""#), "/0/size_bytes", "is the string", "write a whole number";
    // keys without a colon
    "an unknown field without a colon": "[\n {\"x-a\": 1,\n  \"byts\" 1}]", "/0/byts", "a key without a colon", "put `:`";
    "a field without a colon": r#"[{"name" "a"}]"#, "/0", "a key without a colon", "put `:`";
    "a second field without a colon": r#"[{"name": "a", "name" "b"}]"#, "/0/name", "a key without a colon", "put `:`";
    // what is no JSON, each in words of its own
    "no comma in a list": r#"[{"residencies": [{"device": "gpu", "start_phase": "load", "end_phase": "load"} 3]}]"#, "/0/residencies", "a list goes on without a comma", "put a comma";
    "no comma in an object": r#"[{"name": "a" "b": 1}]"#, "/0", "an object goes on without a comma", "put a comma";
    "a word": r#"[{"name": nul}]"#, "/0/name", "a word that JSON does not have", "`null`";
    "no value": r#"[{"name": , "a": 1}]"#, "/0/name", "no value where one belongs", "double quotes";
    "a bad escape": r#"[{"name": "\q"}]"#, "/0/name", "an escape that JSON does not have", "`\\\\`";
    "half a character": r#"[{"name": "\ud800"}]"#, "/0/name", "half a character", "both halves";
    "a leading zero": r#"[{"size_mb": 01}]"#, "/0/size_mb", "a number that JSON does not write so", "leading zero";
    // what is no ledger
    "a number": "5", "", "not a ledger", "a list of states";
    "two values": "[] []", "", "more text after the end", "one value";
    "a comma too many": "[{\"size_mb\": 1,}]", "/0", "a comma without a value", "remove the comma";
    "Python's quotes": "[{'name': 1}]", "/0", "`'` is not JSON", "double quotes";
    "Python's True": r#"[{"persistent": True}]"#, "/0/persistent", "`True` is not JSON", "`true`";
    "a comment": "[ // states\n]", "/0", "`//` is not JSON", "no comments";
    "a cut file": r#"[{"name": "a", "cat"#, "/0", "ends in the middle", "cut off";
    "white space only": " \n ", "", "nothing in it but white space", "`[]`";
    "a raw line break": "[{\"name\": \"a\nb\"}]", "/0/name", "raw line break", "`\\n`";
};

pub(crate) fn read(text: &str) -> Result<LedgerFile, Problem> {
    read_ledger(&Source::from_text("ledger.json", text))
}

#[test]
fn valid_files_are_read() {
    for (name, text) in VALID {
        assert!(read(text).is_ok(), "{name}: {}", read(text).unwrap_err());
    }
}

#[test]
fn invalid_files_are_refused_with_place_cause_and_mend() {
    for case in INVALID {
        let problem = read(case.text).expect_err(case.name);
        let name = case.name;
        assert!(problem.cause.contains(case.says), "{name}: {problem}");
        assert!(problem.mend.as_deref().is_some_and(|mend| mend.contains(case.mend)), "{name}: {problem}");
        if let Some(Place::Text { line, column, pointer }) = &problem.place {
            assert_eq!(pointer, case.pointer, "{name}");
            assert!(*line >= 1 && *column >= 1, "{name}");
        } else {
            assert_eq!(case.pointer, "", "{name}");
        }
    }
}

#[test]
fn places_are_exact() {
    let text = "[\n  {\"name\": \"a\",\n   \"size_mb\": -1, \"category\": \"activation\", \"start_phase\": \"load\",\n   \
                \"end_phase\": \"load\", \"device\": \"gpu\", \"persistent\": true}\n]";
    assert_eq!(
        read(text).unwrap_err().to_string(),
        "ledger.json:3:15 (/0/size_mb): `size_mb` is negative (-1.0)\n  help: sizes are 0 or more, in MiB (2^20 bytes)"
    );
}

#[test]
fn every_prefix_of_a_valid_file_is_an_error() {
    for (name, text) in VALID {
        for end in (0..text.trim_end().len()).filter(|end| text.is_char_boundary(*end)) {
            assert!(read(&text[..end]).is_err(), "{name}, {end} bytes");
        }
    }
}

#[test]
fn every_byte_that_changes_is_read_or_refused() {
    let (_, text) = VALID.last().unwrap();
    let [mut is_read, mut is_refused] = [0; 2];
    for at in 0..text.len() {
        for byte in [b'"', b'{', b'}', b'[', b']', b',', b':', b'0', b'-', b'e', b'\\', b' ', 0] {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = byte;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            match read(&changed) {
                Ok(_) => is_read += 1,
                Err(problem) => {
                    assert!(!problem.cause.is_empty());
                    is_refused += 1;
                }
            }
        }
    }
    assert!(is_read > 100 && is_refused > 1000, "{is_read} {is_refused}");
}

#[test]
fn bare_names_stand_for_the_first_and_the_last_micro_batch() {
    let (_, text) = VALID.last().unwrap();
    let file = read(text).unwrap();
    let totals: Vec<u64> = file.ledger.phases().map(|(_, sums)| sums.total.get()).collect();
    // weights everywhere, the activation in micro-batch 1, gradients from the first backward to the last
    assert_eq!(totals, [100, 105, 115, 115, 100]);
    let peak = file.ledger.peak();
    assert_eq!(
        (&peak.slot.phase, peak.slot.micro_batch),
        (&Phase::Forward, Some(1)),
        "ties go to the earliest"
    );
    assert_eq!(file.peak_op(), None, "nothing is said of forward.1");
    assert_eq!(file.peak_ops[3].as_deref(), Some("mlp: silu"));
    let (name, candidate) = &file.candidates[0];
    assert_eq!((&**name, candidate.peak().bytes), ("no gradients", Bytes::new(100)));
}

#[test]
fn residencies_count_moments_in_their_phase() {
    let file = read(stays!(
        r#"{"device": "gpu", "start_phase": "rollout", "end_phase": "rollout", "end_moment": 1},
           {"device": "cpu", "start_phase": "rollout", "start_moment": 1, "end_phase": "rollout", "end_moment": 2},
           {"device": "gpu", "start_phase": "update", "end_phase": "update"}"#
    ))
    .unwrap();
    assert_eq!(file.ledger.totals().gpu(), [8, 8, 0, 0, 8]);
    let state = &file.ledger.states()[0];
    let on_host: Vec<bool> =
        (0..5).map(|m| state.resident(Device::Cpu, peakledger_core::Moment(m))).collect();
    assert_eq!(on_host, [false, true, true, false, false]);
}

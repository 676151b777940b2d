//! Free-form JSON and typed configs: strict about repeated keys, depth and numbers.

use peakledger_input::{CONFIG_LIMIT, Source, json};
use serde::Deserialize;
use serde_json::json;

fn value(text: &str) -> Result<serde_json::Value, String> {
    json::value(&Source::from_text("config.json", text)).map_err(|problem| problem.to_string())
}

#[test]
fn any_value_is_read() {
    let text = r#"{"a": [1, -2, 2.5, 18446744073709551615, true, null, "é\n"], "b": {"a": {}}}"#;
    assert_eq!(value(text).unwrap(), json!({"a": [1, -2, 2.5, u64::MAX, true, null, "é\n"], "b": {"a": {}}}));
}

#[test]
fn a_repeated_key_is_refused_at_any_depth_with_both_places() {
    assert_eq!(
        value("{\"a\": 1,\n \"b\": [{\"c\": 1},\n {\"hidden_size\": 1,\n  \"hidden_size\": 2}]}")
            .unwrap_err(),
        "config.json:4:3 (/b/1/hidden_size): the key `hidden_size` appears twice (first in line 3, column 3)\n  \
         help: keep one of the two"
    );
}

#[test]
fn deep_nesting_is_refused() {
    for depth in [10_000, 200] {
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let said = value(&text).unwrap_err();
        assert!(said.contains("nested deeper than 128 levels\n  help: "), "{said}");
    }
}

#[test]
fn numbers_that_json_does_not_have_are_named() {
    for word in ["NaN", "Infinity", "-Infinity"] {
        let said = value(&format!("{{\"rope_theta\": {word}}}")).unwrap_err();
        assert!(said.starts_with(&format!("config.json:1:16 (/rope_theta): `{word}` is not JSON")), "{said}");
    }
}

#[test]
fn typed_values_name_the_field() {
    #[derive(Debug, Deserialize)]
    #[allow(dead_code)] // read for its errors
    struct Config {
        hidden_size: u64,
        layers: Vec<Layer>,
    }
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Layer {
        SlidingAttention,
        FullAttention,
    }
    let parse = |text: &str| {
        let source = Source::from_text("config.json", text);
        json::parse::<Config>(&source)
            .map(|config| config.layers.len())
            .map_err(|problem| problem.to_string())
    };
    assert_eq!(parse(r#"{"hidden_size": 8, "layers": ["full_attention", "sliding_attention"]}"#), Ok(2));
    assert_eq!(
        parse(r#"{"hidden_size": "32", "layers": []}"#).unwrap_err(),
        "config.json:1:17 (/hidden_size): `hidden_size` is the string \"32\", but takes a whole number of 0 or more\n  \
         help: remove the quotes"
    );
    assert_eq!(
        parse(r#"{"hidden_size": 1, "layers": ["full_atention"]}"#).unwrap_err(),
        "config.json:1:31 (/layers/0): unknown value `full_atention`\n  help: did you mean `full_attention`?"
    );
    assert_eq!(
        parse(r#"{"layers": []}"#).unwrap_err(),
        "config.json:1:1: `hidden_size` is missing\n  help: add `hidden_size`"
    );
}

#[test]
fn a_config_of_17_mib_is_too_large() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(17 << 20).unwrap();
    let problem = Source::open(file.path(), CONFIG_LIMIT).unwrap_err();
    assert_eq!(problem.cause, "larger than a config may be (16 MiB)");
}

#[test]
fn a_repeated_key_is_named_whole_and_placed_whatever_is_in_it() {
    let long = "k".repeat(200);
    for key in ["`x`", "a, `b`", " at line 1 column 1", &long] {
        let said = value(&format!("{{\"{key}\": 1,\n\"{key}\": 2}}")).unwrap_err();
        assert!(
            said.starts_with("config.json:2:1 (/") && said.contains("appears twice (first in line 1"),
            "{said}"
        );
        let shown = if key.len() > 80 { "k".repeat(80) + "…" } else { key.to_owned() };
        assert!(said.contains(&format!("the key `{shown}` appears")), "{said}");
    }
}

#[test]
fn every_fault_has_a_mend() {
    let text = r#"{"a": [1, -2.5e3, true, null, "é\n\u0041"], "b": {"c": {}}}"#;
    for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
        for with in ["\"", "\\", "{", "}", "[", "]", ",", ":", "0", "-", "e", "u", "x", " ", "\u{1}", "é"] {
            let (head, tail) = text.split_at(at);
            for changed in [format!("{head}{with}{tail}"), format!("{head}{with}")] {
                if let Err(said) = value(&changed) {
                    assert!(said.contains("\n  help: "), "{changed}: {said}");
                    assert!(!said.contains("not JSON: ") && !said.contains("expected"), "{changed}: {said}");
                }
            }
        }
    }
}

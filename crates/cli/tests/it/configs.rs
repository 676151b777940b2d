//! Configs that are none, or none that can be planned: code 2, one sentence with file, place, cause and mend, at once.

use crate::support::Bench;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

fn sound() -> Map<String, Value> {
    let config = json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": false
    });
    config.as_object().unwrap().clone()
}

/// The sound config with fields set; a `null` leaves a field out.
fn with(changes: &Value) -> String {
    let mut config = sound();
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(config.remove(key)),
            value => drop(config.insert(key.clone(), value.clone())),
        }
    }
    serde_json::to_string_pretty(&config).unwrap()
}

/// What `plan` says against a config: always of the file, in one line and a help.
fn refusal(content: impl AsRef<[u8]>) -> String {
    let bench = Bench::new().file("config.json", content);
    let began = Instant::now();
    let said = bench.refusal("plan config.json");
    assert!(began.elapsed() < Duration::from_secs(20), "it hangs: {said}");
    assert!(said.starts_with("error: config.json"), "{said}");
    assert!(said.trim_end().lines().count() <= 2, "{said}");
    assert!(said.len() < 500, "{said}");
    said
}

#[test]
fn the_sound_config_is_planned() {
    let bench = Bench::new().file("config.json", with(&json!({})));
    assert!(bench.answer("plan config.json").starts_with("peak "));
}

#[test]
fn text_that_is_no_config() {
    let deep = |open: &str, close: &str| [open.repeat(10_000), "1".to_owned(), close.repeat(10_000)].concat();
    let (lists, objects) = (deep("[", "]"), deep("{\"a\":", "}"));
    for (content, says) in [
        ("", &["an empty file"][..]),
        ("<!DOCTYPE html>\n<html>404</html>", &["an HTML page", "\n  help: "]),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 654\n",
            &["a git-lfs pointer", "git lfs pull"],
        ),
        ("{\n  // the model\n  \"model_type\": \"llama\"\n}", &[":2:3", "no comments"]),
        ("{\"model_type\": \"llama\",}", &[":1:24", "remove the comma"]),
        ("{\"model_type\": \"llama\" \"hidden_size\": 64}", &[":1:24"]),
        ("{'model_type': 'llama'}", &[":1:2", "double quotes"]),
        (
            "{\"model_type\": \"llama\", \"hidden_size\": NaN}",
            &[":1:40 (/hidden_size)", "`NaN` is not JSON", "\n  help: "],
        ),
        ("{\"rope_theta\": -Infinity}", &["(/rope_theta)", "`-Infinity` is not JSON"]),
        ("{\"use_cache\": True}", &["(/use_cache)", "write `true`"]),
        (
            "{\"model_type\": \"llama\",\n \"hidden_size\": 64,\n \"hidden_size\": 128}",
            &[":3:2 (/hidden_size)", "appears twice", "line 2, column 2", "keep one"],
        ),
        ("{\"a\": {\"b\": 1, \"b\": 2}}", &["(/a/b)", "appears twice"]),
        ("{\"model_type\": \"llama\"", &["ends in the middle"]),
        ("{\"model_type\": \"llama\"}\n{}", &[":2:1", "more text"]),
        ("[]", &["is a JSON object"]),
        ("null", &["is a JSON object"]),
        ("\"llama\"", &["is a JSON object"]),
        ("{}", &["no `model_type`", "llama"]),
        (&lists, &["deeper than 128"]),
        (&objects, &["deeper than 128"]),
    ] {
        let said = refusal(content);
        assert!(says.iter().all(|says| said.contains(says)), "{content:.60}: {said}");
        assert!(said.contains("\n  help: "), "{content:.60}: {said}");
    }
}

#[test]
fn bytes_that_are_no_text() {
    for (content, says) in [
        (&b"\x80\x04\x95\x10"[..], "a Python pickle"),
        (b"PK\x03\x04\x14", "a zip archive"),
        (b"\x1f\x8b\x08\x00", "a gzip archive"),
        (b"{\"model_type\": \"ll\xffma\"}", "not UTF-8"),
    ] {
        let said = refusal(content);
        assert!(said.contains(says), "{says}: {said}");
    }
}

#[test]
fn a_byte_order_mark_is_no_fault() {
    let bench = Bench::new().file("config.json", format!("\u{feff}{}", with(&json!({}))));
    assert!(bench.answer("plan config.json").starts_with("peak "));
}

#[test]
fn a_config_of_17_mib_is_refused_unread() {
    let mut content = with(&json!({}));
    content.push_str(&" ".repeat(17 << 20));
    let said = refusal(content);
    assert!(said.contains("16 MiB") && said.contains("\n  help: "), "{said}");
}

/// What each field may not be, and what is said of it.
#[test]
fn fields_that_cannot_be() {
    let heads = "(/num_attention_heads)";
    for (changes, says) in [
        (json!({"model_type": null}), &["no `model_type`", "llama"][..]),
        (json!({"model_type": 3}), &["(/model_type)", "not text"]),
        (json!({"model_type": "qewn2"}), &["(/model_type)", "`qewn2` is not known", "did you mean `qwen2`"]),
        (json!({"model_type": "speech9"}), &["(/model_type)", "`speech9` is not known", "nown are llama"]),
        (json!({"num_hidden_layers": null}), &["`num_hidden_layers` is missing", "add"]),
        (json!({"hidden_size": null}), &["`hidden_size` is missing", "add"]),
        (json!({"num_attention_heads": null}), &["`num_attention_heads` is missing", "add"]),
        (json!({"vocab_size": null}), &["`vocab_size` is missing", "add"]),
        (json!({"intermediate_size": null}), &["`intermediate_size` is missing", "add"]),
        (json!({"num_attention_heads": 0}), &[heads, "is 0", "1 or more"]),
        (json!({"num_attention_heads": -1}), &[heads, "is -1", "1 or more"]),
        (json!({"num_attention_heads": 2.5}), &[heads, "is 2.5", "whole number"]),
        (json!({"num_attention_heads": "32"}), &[heads, "32", "remove the quotes"]),
        (json!({"num_attention_heads": "many"}), &[heads, "is not a number"]),
        (json!({"num_attention_heads": [4, 4]}), &[heads, "is not a number"]),
        (json!({"num_attention_heads": true}), &[heads, "is not a number"]),
        (json!({"hidden_size": 66}), &["(/hidden_size)", "(66)", "(4)", "no `head_dim`", "add `head_dim`"]),
        (
            json!({"num_attention_heads": 128, "num_key_value_heads": 128}),
            &["(/hidden_size)", "(64)", "(128)"],
        ),
        (json!({"num_key_value_heads": 3}), &["(/num_key_value_heads)", "(4)", "(3)", "\n  help: "]),
        (json!({"num_key_value_heads": 8}), &["(/num_key_value_heads)", "(4)", "(8)"]),
        (json!({"num_key_value_heads": 0}), &["(/num_key_value_heads)", "is 0"]),
        (json!({"head_dim": 15}), &["(/head_dim)", "15", "pairs", "even"]),
        (json!({"vocab_size": 0}), &["(/vocab_size)", "is 0"]),
        (json!({"vocab_size": 1_u64 << 63}), &["(/vocab_size)", "9223372036854775808", "above the limit"]),
        (json!({"vocab_size": 1e21}), &["(/vocab_size)", "1e+21", "above the limit"]),
        (json!({"n_layer": 3}), &["(/n_layer)", "3", "`num_hidden_layers`", "2", "keep one"]),
        (json!({"num_hidden_layers": 40_000}), &["(/num_hidden_layers)", "40000", "above the limit"]),
        (
            json!({"model_type": "t5", "is_encoder_decoder": true}),
            &["(/is_encoder_decoder)", "encoder-decoder"],
        ),
        (
            json!({"num_hidden_layers": 1_000_000_000}),
            &["(/num_hidden_layers)", "1000000000", "above the limit"],
        ),
        (json!({"intermediate_size": [128, 128]}), &["(/intermediate_size)", "is not a number"]),
        (json!({"max_position_embeddings": 0}), &["(/max_position_embeddings)", "is 0"]),
        (
            json!({"tie_word_embeddings": "no"}),
            &["(/tie_word_embeddings)", "true or false", "without quotes"],
        ),
        (json!({"mlp_bias": 1}), &["(/mlp_bias)", "true or false"]),
        (json!({"attention_dropout": 1.5}), &["(/attention_dropout)", "1.5", "probability"]),
        (json!({"attention_dropout": "0.1"}), &["(/attention_dropout)", "0.1", "probability"]),
        (json!({"hidden_act": "swiglu9"}), &["(/hidden_act)", "swiglu9", "known are silu"]),
        (json!({"hidden_act": 3}), &["(/hidden_act)", "3", "known are silu"]),
        (json!({"is_encoder_decoder": true}), &["(/is_encoder_decoder)", "encoder-decoder", "decoder-only"]),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
            &["(/quantization_config)", "`gptq`", "remove `quantization_config`"],
        ),
        (
            json!({"quantization_config": {"load_in_4bit": true, "quant_method": "bitsandbytes"}}),
            &["(/quantization_config)", "bitsandbytes", "`--quantize nf4`"],
        ),
        (
            json!({"quantization_config": {"load_in_4bit": true, "bnb_4bit_use_double_quant": true}}),
            &["(/quantization_config)", "`--quantize nf4-double`"],
        ),
        (json!({"quantization_config": {"load_in_8bit": true}}), &["`--quantize int8`"]),
        (json!({"model_type": "x".repeat(5000)}), &["(/model_type)", "x…` is not known"]),
        (json!({"model_type": "\u{1b}[31mred\u{202e}"}), &["\\u{1b}[31mred\\u{202e}"]),
    ] {
        let said = refusal(with(&changes));
        assert!(says.iter().all(|says| said.contains(says)), "{changes}: {said}");
        assert!(said.contains("\n  help: "), "{changes}: {said}");
        assert!(!said.contains(['\u{1b}', '\u{202e}']), "{changes}");
    }
}

#[test]
fn fields_that_may_be_left_out_are_named_among_the_assumptions() {
    let config = with(&json!({"tie_word_embeddings": null, "max_position_embeddings": null}));
    for null in ["", r#""max_position_embeddings": null,"#] {
        let config = config.replacen('{', &format!("{{{null}"), 1);
        let bench = Bench::new().file("config.json", config);
        let plan: Value = serde_json::from_str(&bench.answer("plan config.json --format json")).unwrap();
        let said = plan["assumptions"]["config"].as_str().unwrap();
        for default in ["tie_word_embeddings = false", "max_position_embeddings = 2048"] {
            assert!(said.contains(default), "{said}");
        }
    }
}

#[test]
fn key_heads_that_are_left_out_are_as_many_as_query_heads() {
    let peak = |config: String| {
        let out = Bench::new().file("config.json", config).answer("plan config.json --format json");
        serde_json::from_str::<Value>(&out).unwrap()["peak"]["bytes"].clone()
    };
    let left_out = with(&json!({"num_key_value_heads": null}));
    let null = left_out.replacen('{', r#"{"num_key_value_heads": null,"#, 1);
    let four = peak(with(&json!({"num_key_value_heads": 4})));
    assert_eq!([peak(left_out), peak(null)], [four.clone(), four.clone()]);
    assert_ne!(four, peak(with(&json!({}))), "two of them are fewer");
}

#[test]
fn a_head_width_of_its_own_is_fine() {
    let bench = Bench::new().file("config.json", with(&json!({"hidden_size": 66, "head_dim": 16})));
    assert!(bench.answer("plan config.json").starts_with("peak "));
}

/// Custom code is never run, and what does not decide shapes decides nothing.
#[test]
fn fields_that_decide_nothing_change_nothing() {
    let planned = |changes: Value| {
        let bench = Bench::new().file("config.json", with(&changes));
        bench.answer("plan config.json --format json")
    };
    let custom = json!({"auto_map": {"AutoModelForCausalLM": "evil.py--Evil"}, "x-mine": [1, {"a": null}]});
    assert_eq!(planned(custom), planned(json!({})));
}

#[test]
fn a_thousand_layers_are_only_more_of_the_same() {
    let peak = |layers: u32, options: &str| {
        let bench = Bench::new().file("config.json", with(&json!({"num_hidden_layers": layers})));
        let out =
            bench.answer(&format!("plan config.json --format json --seq-len 16 --precision bf16 {options}"));
        serde_json::from_str::<Value>(&out).unwrap()["peak"]["bytes"].as_u64().unwrap()
    };
    for options in ["", "--recompute full"] {
        let [few, some, many] = [100, 200, 1100].map(|layers| peak(layers, options));
        assert_eq!(many - some, 9 * (some - few), "{options}: each layer adds the same");
    }
}

#[test]
fn sums_past_64_bits_are_an_error() {
    let most = 1_u64 << 28;
    let config = with(&json!({
        "vocab_size": most, "hidden_size": most, "intermediate_size": most, "num_attention_heads": 1024,
        "num_key_value_heads": 1024, "num_hidden_layers": 64
    }));
    let bench = Bench::new().file("config.json", config);
    for options in ["", "--batch 65536 --seq-len 65536", "--precision bf16 --optimizer sgd"] {
        let said = bench.refusal(&format!("plan config.json {options}"));
        assert!(said.contains("64 bits") && said.contains("\n  help: "), "{options}: {said}");
    }
}

#[test]
fn every_beginning_of_a_config_is_refused_or_planned() {
    let whole = with(&json!({}));
    for end in (0..whole.len()).step_by(7) {
        let said = refusal(&whole[..end]);
        assert!(said.contains("ends in the middle") || said.contains("an empty file"), "{end}: {said}");
    }
}

#[test]
fn names_of_another_family_are_not_taken_for_its_own() {
    for (usual, foreign) in [
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "n_positions"),
    ] {
        let said = refusal(with(&json!({usual: null, foreign: 64})));
        let says =
            format!("(/{foreign}): `{foreign}` is gpt2's name for `{usual}`, which `llama` does not know");
        assert!(said.contains(&says) && said.contains("\n  help: name it"), "{said}");
    }
    assert!(!refusal(with(&json!({"hidden_size": null}))).contains("n_embd"), "it is no name of llama's");
    let said = refusal(with(&json!({"model_type": "gpt2", "hidden_size": null})));
    assert!(said.contains("`hidden_size` is missing\n  help: add \"hidden_size\" (or `n_embd`)"), "{said}");
    assert!(refusal(with(&json!({"is_encoder_decoder": "true"}))).contains("is not true or false"));
}

#[test]
fn what_the_modules_do_not_read_is_noted() {
    let config = |changes: Value| -> String {
        let bench = Bench::new().file("config.json", with(&changes));
        let json: Value = serde_json::from_str(&bench.answer("plan config.json --format json")).unwrap();
        json["assumptions"]["config"].as_str().unwrap_or_default().to_owned()
    };
    for (changes, notes) in [
        (json!({}), ""),
        (
            json!({"architectures": ["LlamaForCausalLM"], "num_experts": 0, "text_config": {}, "vision_config": null}),
            "`text_config`",
        ),
        (json!({"num_local_experts": 8}), "`num_local_experts`"),
        (
            json!({"num_nextn_predict_layers": 1}),
            "`num_nextn_predict_layers`: layers that predict further tokens, which transformers does not build, and Megatron with `--mtp-num-layers` alone",
        ),
        (json!({"num_experts": 64, "vision_config": {"depth": 2}}), "`num_experts`, `vision_config`"),
        (json!({"architectures": ["MixtralForCausalLM"]}), "`MixtralForCausalLM` of `architectures`"),
        (
            json!({"model_type": "qwen2", "architectures": ["Qwen2MoeForCausalLM"], "use_sliding_window": false}),
            "`Qwen2MoeForCausalLM` of `architectures`",
        ),
        (
            json!({"architectures": ["LlamaForSequenceClassification\u{1b}[31m"]}),
            "`LlamaForSequenceClassification\\u{1b}[31m` of `architectures`",
        ),
    ] {
        let found = config(changes.clone());
        let found = found.split_once("not planned: ").map_or("", |(_, noted)| noted);
        assert_eq!(found, notes, "{changes}");
    }
    let bench = Bench::new().file("config.json", with(&json!({})));
    let eager = bench.answer("plan config.json --attention eager --expand-kv --format json");
    assert!(eager.contains("--expand-kv changes nothing"), "{eager}");
}

#[test]
fn groups_of_experts_and_widths_of_latent_heads() {
    let deepseek = |changes: &Value| {
        let mut config = json!({
            "model_type": "deepseek_v3", "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": null,
            "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 0,
            "moe_intermediate_size": 32, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8, "v_head_dim": 16,
        });
        let fields = config.as_object_mut().unwrap();
        fields.extend(changes.as_object().unwrap().clone());
        with(&config)
    };
    let bench = Bench::new().file("config.json", deepseek(&json!({})));
    assert!(bench.answer("plan config.json").starts_with("peak "));
    for (changes, says) in [
        (json!({"n_group": 3}), "(/n_group): 16 experts do not part into 3 groups of two or more"),
        (json!({"n_group": 16}), "(/n_group): 16 experts do not part into 16 groups"),
        (json!({"topk_group": 5}), "(/topk_group): a token goes to 4 experts of 5 groups of 4"),
        (json!({"num_experts_per_tok": 9}), "(/topk_group): a token goes to 9 experts of 2 groups of 4"),
        (json!({"num_experts_per_tok": 17}), "(/num_experts_per_tok): a token goes to 17 experts"),
        (
            json!({"qk_rope_head_dim": 7}),
            "(/qk_rope_head_dim): `qk_rope_head_dim` is 7, and rotary positions turn",
        ),
        (
            json!({"num_key_value_heads": 1}),
            "(/num_key_value_heads): keys and values are made for every head",
        ),
    ] {
        let said = refusal(deepseek(&changes));
        assert!(said.contains(says), "{changes}: {said}");
    }
}

#[test]
fn a_misspelt_key_is_the_one_that_was_meant() {
    let said = refusal(with(&json!({"intermediate_size": null, "intermediate_sze": 128})));
    let says = "`intermediate_size` is missing\n  help: did you mean `intermediate_size` where it says `intermediate_sze`?";
    assert!(said.contains(says), "{said}");
    let said = refusal(with(&json!({"hidden_size": null, "hidden_act": "silu"})));
    assert!(said.contains("`hidden_size` is missing\n  help: add "), "{said}");
}

/// A family's default is not planned in the place of a key that is there with a slip, or by another library's name.
#[test]
fn a_slip_in_a_key_that_may_be_left_out_is_refused() {
    for (slip, key) in [
        ("num_kv_heads", "num_key_value_heads"),
        ("tie_word_embeding", "tie_word_embeddings"),
        ("head_dims", "head_dim"),
        ("torch_dtypes", "torch_dtype"),
    ] {
        let said = refusal(with(&json!({slip: 2, key: null})));
        let says =
            format!("`{slip}` is no key of it, and `{key}` is left out\n  help: did you mean `{key}`?");
        assert!(said.contains(&says), "{said}");
    }
    // a key that transformers has beside the one that is left out is no slip for it
    let bench = Bench::new().file("config.json", with(&json!({"num_kv_heads": 2, "num_key_value_heads": 2})));
    bench.answer("plan config.json --seq 16");
    // nor is one that other families have for a key that is there
    for other in ["n_layers", "n_heads", "n_embed", "v_head_dim"] {
        Bench::new().file("config.json", with(&json!({other: 2}))).answer("plan config.json --seq 16");
    }
}

/// What torch has no type for is said: a note beside the verdict depends on it.
#[test]
fn a_type_that_torch_has_not_is_refused() {
    for (key, name) in
        [("torch_dtype", "bf16"), ("dtype", "fp32"), ("dtype", "torch.bfloat"), ("torch_dtype", "")]
    {
        let said = refusal(with(&json!({key: name})));
        let says = format!(
            "`{key}` is `{name}`, and no type of weights that is planned\n  help: write bfloat16, float16"
        );
        assert!(said.contains(&says), "{said}");
    }
    assert!(refusal(with(&json!({"dtype": 16}))).contains("`dtype` is `16`, and no type"));
    for fine in
        [json!("torch.bfloat16"), json!("half"), json!("float32"), json!(null), json!({"": "bfloat16"})]
    {
        let bench = Bench::new().file("config.json", with(&json!({"torch_dtype": fine})));
        bench.answer("plan config.json --seq 16");
    }
}

#[test]
fn one_kind_of_file_is_not_taken_for_another() {
    let bench = Bench::new().file("config.json", with(&json!({})));
    for step in ["first", "steady", "both"] {
        bench.answer(&format!("plan config.json --step {step} -o {step}.json --save ledger.json --force"));
        for verb in ["show", "check"] {
            let said = bench.refusal(&format!("{verb} {step}.json"));
            let says =
                "a report of `plan`, not a ledger\n  help: `peakledger plan … --save FILE` writes the ledger";
            assert!(said.contains(says), "{said}");
        }
    }
    for (verb, report) in [
        ("show ledger.json", "`show`"),
        ("compare ledger.json a=ledger.json", "`compare`"),
        ("fit gpt2 --gpu t4", "`fit`"),
    ] {
        bench.answer(&format!("{verb} -o report.json --force"));
        let said = bench.refusal("check report.json");
        assert!(
            said.contains(&format!("a report of {report}, not a ledger\n  help: pass a ledger: ")),
            "{said}"
        );
    }
    for (name, kind, help) in [
        ("ds.json", "DeepSpeed", "give it to `--from` and name a model: `peakledger plan MODEL --from "),
        (
            "args.json",
            "TrainingArguments",
            "give it to `--from` and name a model: `peakledger plan MODEL --from ",
        ),
        ("fsdp.yaml", "accelerate", "give it to `--from` and name a model: `peakledger plan MODEL --from "),
        ("lora.yaml", "Axolotl", "it names the model itself: `peakledger plan --from "),
    ] {
        let bench = Bench::new()
            .file("ds.json", r#"{"train_batch_size": 8, "zero_optimization": {"stage": 2}}"#)
            .file("args.json", r#"{"output_dir": "out", "per_device_train_batch_size": 2}"#)
            .file(
                "fsdp.yaml",
                "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\n",
            )
            .file(
                "lora.yaml",
                "base_model: gpt2\nmicro_batch_size: 2\nadapter: lora\nlora_r: 8\nsequence_len: 512\n",
            );
        for verb in ["plan", "fit --gpu t4"] {
            let said = bench.refusal(&format!("{verb} {name}"));
            let says =
                format!("{name}: a training config ({kind}), not that of a model\n  help: {help}{name}`\n");
            assert!(said.contains(&says), "{said}");
        }
    }
    let said = bench.refusal("plan first.json");
    assert!(said.contains("first.json: a report, not the config of a model\n  help: "), "{said}");
    assert!(bench.refusal("show config.json").contains("the config of a model, not a ledger\n  help: "));
    let said = bench.refusal("plan ledger.json");
    assert!(
        said.contains("ledger.json: a ledger, not the config of a model\n  help: `peakledger show"),
        "{said}"
    );
}

/// What a model is more than its text is said, and faults are named where they lie.
#[test]
fn the_text_model_of_a_larger_one() {
    let text = json!({
        "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 1000, "sliding_window": 16,
    });
    let whole = json!({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}});
    let planned = |config: &Value| {
        let bench = Bench::new().file("config.json", config.to_string());
        let out = bench.answer("plan config.json --seq-len 32 --format json");
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let (alone, inside) = (planned(&text), planned(&whole));
    assert_eq!(alone["peak"]["bytes"], inside["peak"]["bytes"]);
    let said = inside["assumptions"]["not planned"].as_str().unwrap_or_default();
    let said = format!("{said}{}", inside["assumptions"]["config"]);
    assert!(said.contains("what `gemma3` has beside its text model"), "{said}");
    let mut broken = whole;
    broken["text_config"]["hidden_size"] = json!("wide");
    let bench = Bench::new().file("config.json", broken.to_string());
    let said = bench.refusal("plan config.json");
    assert!(said.contains("(/text_config/hidden_size)"), "{said}");
}

/// Gemma 3's files of models that see have what differs from `Gemma3TextConfig` alone; a slip is no key that is left out.
#[test]
fn what_gemma3_files_leave_out_is_its_own() {
    let text = json!({"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 2, "sliding_window": 1024});
    let config =
        |text: &Value| json!({"model_type": "gemma3", "text_config": text, "vision_config": {}}).to_string();
    let bench = Bench::new().file("config.json", config(&text));
    let out = bench.answer("plan config.json --seq-len 32");
    for says in ["vocab_size = 262208", "num_attention_heads = 8"] {
        assert!(out.split_whitespace().collect::<Vec<_>>().join(" ").contains(says), "{says}: {out}");
    }
    let mut slip = text;
    slip["vocab_sise"] = json!(1000);
    let bench = Bench::new().file("config.json", config(&slip));
    let said = bench.refusal("plan config.json --seq-len 32");
    assert!(said.contains("did you mean `vocab_size`"), "{said}");
}

//! Every number of a peak is explained, and whatever is asked for is found.

use super::*;
use crate::catalogue::open_model;
use crate::config::Architecture;
use crate::options::{Attention, Lora, Offload, Options, Quantize, Recompute};
use crate::plan;
use crate::torch::tape::rounded;

fn planned(model: &str, options: Options) -> Plan {
    let architecture = Architecture::read(&open_model(model).unwrap().config).unwrap();
    plan(architecture, Options { seq_len: Some(64), ..options }).unwrap()
}

/// What is said of each contributor adds up to it, and sizes times width is what is stored.
#[test]
fn every_number_of_the_peak_is_explained() {
    let everything = Offload { activations: true, optimizer: true, parameters: true };
    let lora = Lora { rank: 4, dropout: 0.1, ..Lora::default() };
    for (model, options) in [
        ("qwen2.5-0.5b", Options::default()),
        ("qwen2.5-0.5b", Options { recompute: Recompute::Full, ..Options::default() }),
        ("qwen2.5-0.5b", Options { offload: everything, ..Options::default() }),
        (
            "gpt2",
            Options { attention: Attention::Eager, gradient_accumulation_steps: 3, ..Options::default() },
        ),
        (
            "gemma-2-2b",
            Options { lora: Some(lora), quantize: Some(Quantize::Nf4Double), ..Options::default() },
        ),
    ] {
        let plan = planned(model, options);
        for step in [Step::First, Step::Steady] {
            for contributor in plan.contributors_at(plan.step(step).peak()) {
                let explained = plan.explain(&contributor.name, Some(step)).unwrap();
                assert!(explained.at_peak);
                assert_eq!(explained.bytes, contributor.bytes, "{contributor:?}");
                for part in &explained.parts {
                    assert_eq!(part.each.get(), rounded(part.requested.get()), "{part:?}");
                    assert!(!part.why.is_empty() && part.each.get() * part.count == part.bytes.get());
                }
            }
        }
    }
}

/// Every tensor that is kept for backward has a backward that needs it.
#[test]
fn what_autograd_keeps_is_needed_by_some_backward() {
    for recompute in [Recompute::None, Recompute::Full] {
        let plan = planned("qwen2.5-0.5b", Options { recompute, ..Options::default() });
        let saved = plan.explain("saved_tensor", None).unwrap();
        let unneeded = saved.parts.iter().filter(|part| !part.why.starts_with("autograd"));
        let unneeded: Vec<String> = unneeded.map(|part| format!("{} {}", part.name, part.why)).collect();
        assert!(unneeded.iter().all(|text| text.contains("autocast's copy")), "{unneeded:#?}");
        let silu = saved.parts.iter().find(|part| part.name.ends_with("act_fn: silu")).unwrap();
        assert!(silu.why.contains("the backward of `mul.Tensor` in model.layers.*.mlp"), "{}", silu.why);
        let checkpoints = saved.parts.iter().any(|part| part.why.contains("a checkpoint"));
        assert_eq!(checkpoints, recompute == Recompute::Full);
    }
}

#[test]
fn kernels_name_their_source() {
    let plan = planned("gpt2", Options { attention: Attention::Eager, ..Options::default() });
    let kernels = plan.explain("kernel", None).unwrap();
    assert!(!kernels.at_peak && kernels.parts.iter().all(|part| part.source.is_some()));
    assert!(kernels.parts.iter().any(|part| part.source.unwrap().ends_with("SoftMax.cu")));
}

#[test]
fn names_are_found_by_beginning_and_pattern() {
    let plan = planned("qwen2.5-0.5b", Options::default());
    for asked in ["model.layers.3.mlp.down_proj.weight.exp_avg_sq", "model.layers.3.*down_proj*exp_avg_s?"] {
        let one = plan.explain(asked, None).unwrap();
        assert_eq!((one.parts.len(), one.parts[0].count), (1, 1), "{asked}");
        assert_eq!(one.parts[0].name, "model.layers.3.mlp.down_proj.weight.exp_avg_sq");
    }
    // what begins no name is any part of one
    for (asked, found) in [
        ("mlp", "mlp"),
        ("embed_tokens", "model.embed_tokens.weight"),
        ("_foreach_sqrt", "_foreach_sqrt"),
        ("act_fn", "model.layers.*.mlp.act_fn: silu"),
    ] {
        let parts = plan.explain(asked, None).unwrap().parts;
        assert!(parts.iter().any(|part| part.name.contains(found)), "{asked}: {parts:#?}");
    }
    let said = |asked: &str| plan.explain(asked, None).unwrap_err().to_string();
    assert!(said("parametres").contains("did you mean `parameters`?"), "{}", said("parametres"));
    assert!(said("").contains("name a contributor") && said("zzz").contains("name a contributor"));
}

//! What each kind of config becomes: the samples in `examples/configs`, and what is special about a kind.

mod accelerate;
mod any_kind;
mod axolotl;
mod deepspeed;
mod llama_factory;
mod megatron;
mod peft;
mod torchtitan;
mod training_arguments;
mod trl;

use super::*;
use crate::step_args::StepArgs;

/// A verb's command line, as far as it is about options of a step.
#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[arg(value_parser = crate::args::model())]
    model: Option<Model>,
    #[command(flatten)]
    given: Given,
}

/// The command line that the texts become, with more words; or what is wrong with them.
fn becomes(files: &[(&str, &str)], words: &str) -> String {
    let line = <Line as clap::Parser>::try_parse_from(words.split_whitespace()).unwrap();
    let answer = resolved(files, &line);
    match answer {
        Err(problem) => problem.to_string(),
        Ok(resolved) => {
            let origins = resolved.origins.unwrap();
            let mut lines = vec![origins.command.replace(" --", "\n  --")];
            let key = |key: &peakledger_report::OriginKey| match key.line {
                Some(line) => format!("{}:{line} {}", key.file, key.key),
                None => format!("{} {}", key.file, key.key),
            };
            lines.extend(origins.not_read.iter().map(|not| format!("not read: {}", key(&not.origin))));
            lines.extend(
                origins
                    .not_planned
                    .iter()
                    .map(|not| format!("unplanned: {}: {}", key(&not.origin), not.what)),
            );
            lines.join("\n")
        }
    }
}

fn resolved(files: &[(&str, &str)], line: &Line) -> Result<Resolved, Problem> {
    let mut combined = Combined::default();
    for (name, text) in files {
        let (kind, found) = read(Source::from_text(*name, *text), None, false)?;
        combined.take((*name).to_owned(), kind, Input::of(*name), found)?;
    }
    let command = StepArgs::augment_args(Command::new("plan"));
    combined.resolve("plan", line.model.as_ref(), &line.given, &command)
}

macro_rules! sample {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../../examples/configs/", $name)))
    };
}

const DEEPSPEED: (&str, &str) = sample!("deepspeed-zero2.json");
const TRAINING_ARGUMENTS: (&str, &str) = sample!("training-arguments.json");
const ACCELERATE: (&str, &str) = sample!("accelerate-fsdp2.yaml");
const AXOLOTL: (&str, &str) = sample!("axolotl-qlora.yaml");
const LLAMA_FACTORY: (&str, &str) = sample!("llama-factory-lora.yaml");
const TORCHTITAN: (&str, &str) = sample!("torchtitan-llama3.toml");
const MEGATRON: (&str, &str) = sample!("megatron-llama3.sh");
const PEFT: (&str, &str) = sample!("peft-adapter.json");
const DEEPSEEK: (&str, &str) = sample!("megatron-deepseek-v3.sh");

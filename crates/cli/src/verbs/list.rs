//! `peakledger list`: what is known by name.

use crate::Answer;
use crate::args::OutputArgs;
use clap::ValueEnum;
use peakledger_core::Bytes;
use peakledger_input::Problem;
use peakledger_plan::catalogue::{Card, cards, models};
use peakledger_plan::config::{Architecture, FAMILIES};
use peakledger_report::{Entry, ListReport};

/// List the models, cards and model families that are known by name
#[derive(clap::Args)]
#[command(after_help = crate::examples::LIST)]
pub(crate) struct Args {
    /// What to list
    #[arg(value_enum)]
    what: What,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Models with a config built in
    Models,
    /// Cards with the memory that torch reports for them
    Gpus,
    /// Model families that can be planned
    Families,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let output = args.output.request(&[])?;
    let report = match args.what {
        What::Models => list_models()?,
        What::Gpus => list_gpus(),
        What::Families => list_families(),
    };
    output.write(&report)?;
    Ok(Answer::Given)
}

fn list_models() -> Result<ListReport, Problem> {
    let mut rows = Vec::new();
    for model in models() {
        let architecture = Architecture::read(&model.config())?;
        let (parameters, limit) = (architecture.parameters(), architecture.shape.max_position_embeddings);
        rows.push(vec![
            Entry::Text(model.name.clone()),
            Entry::Number(parameters, billions(parameters)),
            Entry::Text(architecture.family.model_type.to_owned()),
            Entry::Number(limit, limit.to_string()),
            Entry::Text(model.id.clone()),
        ]);
    }
    let titles = vec!["name", "parameters", "family", "max_tokens", "hugging_face_id"];
    Ok(ListReport { titles, rows })
}

fn list_gpus() -> ListReport {
    let row = |card: &Card| {
        let architecture = card.capability.map(|(major, minor)| format!("sm{major}{minor}"));
        let memory = |bytes: Bytes| Entry::Number(bytes.get(), bytes.to_string());
        vec![
            Entry::Text(card.name.clone()),
            memory(card.total),
            Entry::Text(architecture.unwrap_or_default()),
            Entry::Text(card.full_name.clone().unwrap_or_default()),
            Entry::Text(card.source.clone()),
        ]
    };
    let titles = vec!["name", "total_bytes", "architecture", "full_name", "seen_in"];
    ListReport { titles, rows: cards().map(row).collect() }
}

fn list_families() -> ListReport {
    let row = |family: &peakledger_plan::config::Family| {
        vec![Entry::Text(family.model_type.to_owned()), Entry::Text(family.modules.to_owned())]
    };
    ListReport {
        titles: vec!["model_type", "transformers_modules"],
        rows: FAMILIES.iter().map(row).collect(),
    }
}

/// Parameters as people say them: `8.03 B`, `494.0 M`.
fn billions(parameters: u64) -> String {
    match parameters {
        0..1_000_000_000 => format!("{}.{} M", parameters / 1_000_000, parameters / 100_000 % 10),
        _ => format!("{}.{:02} B", parameters / 1_000_000_000, parameters / 10_000_000 % 100),
    }
}

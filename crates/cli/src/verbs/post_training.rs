//! `peakledger plan --post-training`: several models on one timeline.

use super::plan::{Args, Question, RankArg, answer, or_also, targets};
use crate::Answer;
use crate::args::architecture;
use peakledger_core::document::LedgerFile;
use peakledger_input::{Input, Problem};
use peakledger_plan::catalogue::card;
use peakledger_plan::post_training::{PostTraining, post_train};
use peakledger_report::PostTrainingReport;

/// Plans the step that was asked for, and what is around it.
pub(super) fn run(args: &Args, question: &Question, request: PostTraining) -> Result<Answer, Problem> {
    let (model, config) = question.asked.model.open()?;
    let read: Vec<&Input> = config.iter().chain(&question.asked.inputs).collect();
    let (output, saved) = targets(args, &read)?;
    let card = args.gpu.as_deref().map(card).transpose()?;
    let architecture = architecture(&model.config)?;
    let options = question.asked.step.options(card.as_ref())?;
    let rank = match args.rank {
        Some(RankArg::Number(rank)) => Some(rank),
        Some(RankArg::All) => {
            let problem = Problem::in_option("--rank", "post-training is shown of one rank");
            return Err(problem.mend("use a number, or worst"));
        }
        Some(RankArg::Worst) | None => None,
    };
    let request = PostTraining { rank, ..request };
    let planned = post_train(architecture, options, request, card.as_ref());
    let planned = planned.map_err(|problem| or_also(problem, ", or worst"))?;
    let note = format!(
        "peakledger plan {} --post-training {}, a step at device level: what the dispatcher hands out, the batch and kernel memory",
        model.name,
        planned.request.algorithm.as_str()
    );
    let file = LedgerFile::made(planned.ledger().clone(), note, planned.peak_ops().to_vec());
    if let Some(path) = saved {
        output.save(path, &file)?;
    }
    let report =
        PostTrainingReport { name: &model.name, planned: &planned, file: &file, card: card.as_ref() };
    output.write(&report)?;
    Ok(answer(report.verdict(), args.exit_code))
}

//! `peakledger plan`: predict what a training step will hold.

use crate::Answer;
use crate::args::{IN_OPTIONS, ListArgs, Model, OutputArgs, alloc_conf, architecture, model, target};
use crate::from::{FromArgs, Given, Resolved};
use crate::output::{self, Output, Target};
use crate::parsers;
use crate::post_training_args::PostTrainingArgs;
use crate::step_args::{Candidate, StepArgs, candidates, of_candidate};
use crate::usual::{Change, OF_SAVED, changes, together};
use clap::{Command, ValueEnum};
use peakledger_allocator::Settings;
use peakledger_core::document::LedgerFile;
use peakledger_input::{Input, Place, Problem, quoted};
use peakledger_plan::catalogue::{Card, ModelFile, card};
use peakledger_plan::parallel::{Look, RankClass, Ranks, Shown, plan_ranks_closely};
use peakledger_plan::{Plan, RankCosts, Step, Verdict};
use peakledger_report::{ExplainReport, Origins, PlanReport, RankFigures, RanksReport, Reservation};
use std::path::Path;

/// Predict the memory of a training step, op by op, from a model's config
#[derive(clap::Args)]
#[command(after_help = crate::examples::PLAN)]
pub(crate) struct Args {
    /// A catalogue name, a config.json, a folder with one, or org/name from the local Hugging Face cache; `-` reads a
    /// config.json from standard input
    #[arg(value_parser = model())]
    pub(crate) model: Option<Model>,
    #[command(flatten)]
    pub(crate) from: FromArgs,
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    post_training: PostTrainingArgs,
    /// The card to fit on: a name of `peakledger list gpus`, or an amount with its unit, as in 24GiB
    #[arg(long, value_name = "NAME|SIZE", help_heading = IN_OPTIONS)]
    pub(super) gpu: Option<String>,
    /// The caching allocator's settings, as PYTORCH_CUDA_ALLOC_CONF has them: expandable_segments:True, say [default:
    /// torch's]
    #[arg(long, value_name = "KEY:VALUE,…", help_heading = IN_OPTIONS)]
    alloc_conf: Option<String>,
    /// Exit with 1 if it does not fit the card of --gpu
    #[arg(long, help_heading = IN_OPTIONS)]
    pub(super) exit_code: bool,
    /// Another way to run the step, to be compared: "NAME: OPTIONS"; may be repeated
    #[arg(long = "candidate", value_name = "NAME: OPTIONS", allow_hyphen_values = true, help_heading = IN_OPTIONS)]
    candidates: Vec<String>,
    /// Compare with what people usually change of a step too: recompute, LoRA, half the batch twice as often, and the like
    #[arg(long = "candidates", value_enum, value_name = "KIND", help_heading = IN_OPTIONS)]
    usual: Option<UsualArg>,
    /// Say how a number came about: a contributor as the plan lists it, a category, a module, state or op, whole, in part or with `*`
    #[arg(long, value_name = "STATE", conflicts_with_all = ["candidates", "usual", "save"], help_heading = IN_OPTIONS)]
    explain: Option<String>,
    /// The steps to show
    #[arg(long = "step", value_enum, default_value_t = StepArg::Both, value_name = "STEP", help_heading = IN_OPTIONS)]
    shown: StepArg,
    /// Save the step's ledger for `show` and `compare`; the steady step unless --step first
    #[arg(long, value_name = "FILE", value_parser = target(), help_heading = IN_OPTIONS)]
    save: Option<Target>,
    /// Of many GPUs, the rank whose plan is shown: a number, worst for the one that needs most, or all for that one and the
    /// phases of every other [default: worst]
    #[arg(long, value_name = "R|worst|all", allow_negative_numbers = true, value_parser = rank, help_heading = IN_OPTIONS)]
    pub(super) rank: Option<RankArg>,
    /// Draw the timeline in the table
    #[arg(long, help_heading = "Output")]
    plot: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StepArg {
    First,
    Steady,
    Both,
}

/// Which rank is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RankArg {
    Worst,
    All,
    Number(u32),
}

fn rank(text: &str) -> Result<RankArg, Problem> {
    match text {
        "worst" => Ok(RankArg::Worst),
        "all" => Ok(RankArg::All),
        _ => parsers::count(text).map(RankArg::Number).map_err(|_| {
            let problem = Problem::anywhere(format!("{} is no rank", quoted(text)));
            problem.mend("use a number from 0 on, worst or all")
        }),
    }
}

/// Of a rank that there is not: what else `--rank` takes, beside the numbers of those that there are.
pub(super) fn or_also(problem: Problem, others: &str) -> Problem {
    match (&problem.place, &problem.mend) {
        (Some(Place::Option(option)), Some(mend)) if option == "--rank" => {
            let mend = format!("{mend}{others}");
            problem.mend(mend)
        }
        _ => problem,
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum UsualArg {
    /// The usual changes, each by itself; recompute also with the weights in the type of the model's config
    Common,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let question = Question::of(&args)?;
    if args.from.print_options {
        return question.asked.print();
    }
    if let Some(request) = args.post_training.request()? {
        return super::post_training::run(&args, &question, request);
    }
    // the file that must not be overwritten is known only now: the model may be a folder or a name
    let (model, config) = question.asked.model.open()?;
    let read: Vec<&Input> = config.iter().chain(&question.asked.inputs).collect();
    let (output, saved) = targets(&args, &read)?;
    let planned = Planned::of(&args, &question, model)?;
    let Planned { name: model, plan, step, .. } = &planned;
    if let Some(asked) = &args.explain {
        let explanation = &plan.explain(asked, *step)?;
        output.write(&ExplainReport { model, asked, plan, step: *step, explanation })?;
    } else {
        if let Some(path) = saved {
            output.save(path, &planned.ledger()?)?;
        }
        output.write(&planned.report())?;
    }
    Ok(answer(planned.report().verdict(), args.exit_code))
}

/// More states than these are the better part of a gigabyte of text, some 190 bytes for each.
const MOST_SAVED: usize = 4_000_000;

/// What arguments ask, as far as it can be checked before any file is read.
pub(crate) struct Question {
    pub(crate) asked: Resolved,
    candidates: Vec<Candidate>,
    settings: Settings,
}

impl Question {
    pub(crate) fn of(args: &Args) -> Result<Question, Problem> {
        let asked = args.from.resolve("plan", args.model.as_ref(), &args.given, || {
            <Args as clap::Args>::augment_args(Command::new("plan"))
        })?;
        let candidates = candidates(&args.candidates, &asked.step)?;
        let settings = alloc_conf(args.alloc_conf.as_deref())?;
        if args.exit_code && args.gpu.is_none() {
            let problem =
                Problem::in_option("--exit-code", "it asks whether the step fits, and no card is named");
            return Err(problem.mend("name one: `--gpu 80GiB`, or a name of `peakledger list gpus`"));
        }
        Ok(Question { asked, candidates, settings })
    }
}

/// Every rank, and which of them is shown.
struct Ranked {
    each: Vec<(RankClass, RankFigures)>,
    shown: usize,
    worst: usize,
    all: bool,
    asked: bool,
}

/// A step that is planned, and the candidates beside it.
pub(crate) struct Planned {
    name: String,
    plan: Plan,
    step: Option<Step>,
    card: Option<Card>,
    ranks: Ranked,
    candidates: Vec<(String, Plan)>,
    left_out: Vec<(String, String)>,
    slowest: Vec<RankCosts>,
    reservations: Vec<Reservation>,
    origins: Option<Origins>,
}

impl Planned {
    /// Plans what arguments ask of a model.
    pub(crate) fn of(args: &Args, question: &Question, model: ModelFile) -> Result<Planned, Problem> {
        let asked = &question.asked;
        let card = args.gpu.as_deref().map(card).transpose()?;
        let architecture = architecture(&model.config)?;
        let step = match args.shown {
            StepArg::First => Some(Step::First),
            StepArg::Steady => Some(Step::Steady),
            StepArg::Both => None,
        };
        let look = |plan: &Plan, look| {
            let replayed = || Reservation::of(plan, question.settings, card.as_ref(), step);
            let reservation = if look == Look::Close { replayed() } else { None };
            let figures = RankFigures::of(plan, card.as_ref(), step, reservation);
            (plan.needs(figures.needed(), step), figures)
        };
        let run = |args: &StepArgs, shown| {
            plan_ranks_closely(&architecture, &args.options(card.as_ref())?, shown, look)
        };
        let shown = match args.rank {
            Some(RankArg::Number(rank)) => Shown::Rank(rank),
            Some(RankArg::Worst | RankArg::All) | None => Shown::Worst,
        };
        let (mut reservations, mut slowest) = (Vec::new(), Vec::new());
        let mut looked_at = |ranks: &Ranks<RankFigures>| {
            let shown = ranks.each.get(ranks.shown);
            reservations.extend(shown.map(|(_, figures)| figures.reservation.clone()));
            let costs = ranks.each.iter().map(|(_, figures)| figures.costs);
            slowest.extend(costs.reduce(RankCosts::or_slower));
        };
        let planned =
            run(&asked.step, shown).map_err(|problem| asked.blame(or_also(problem, ", worst or all")))?;
        looked_at(&planned);
        let mut plans: Vec<(String, Plan)> = Vec::new();
        let mut left_out = Vec::new();
        // a candidate takes the place of a usual change of its name
        let is_asked =
            |change: &Change| question.candidates.iter().any(|candidate| candidate.name == change.name);
        let mut usual = match args.usual {
            Some(UsualArg::Common) => changes(&planned.plan.options, planned.plan.planned_without()),
            None => Vec::new(),
        };
        usual.extend(together(OF_SAVED, &usual));
        for change in usual.into_iter().filter(|change| !is_asked(change)) {
            let other = Candidate::of(&change.name, &change.options, &asked.step);
            match other.and_then(|other| run(&other.step, Shown::Worst)) {
                Ok(ranks) => {
                    looked_at(&ranks);
                    plans.push((change.name, ranks.plan));
                }
                Err(problem) => left_out.push((change.name, problem.cause)),
            }
        }
        for other in &question.candidates {
            let ranks = run(&other.step, Shown::Worst);
            let ranks = ranks.map_err(|problem| of_candidate(&other.name, &asked.step, problem))?;
            looked_at(&ranks);
            plans.push((other.name.clone(), ranks.plan));
        }
        let Ranks { plan, shown, worst, each } = planned;
        let all = args.rank == Some(RankArg::All);
        let asked_for = matches!(args.rank, Some(RankArg::Number(_)));
        let ranks = Ranked { each, shown, worst, all, asked: asked_for };
        let reservations = reservations.into_iter().map_while(|reserved| reserved).collect();
        let (name, origins) = (model.name, asked.origins.clone());
        let candidates = plans;
        Ok(Planned { name, plan, step, card, ranks, candidates, left_out, slowest, reservations, origins })
    }

    pub(crate) fn report(&self) -> PlanReport<'_> {
        PlanReport {
            name: &self.name,
            plan: &self.plan,
            step: self.step,
            card: self.card.as_ref(),
            candidates: &self.candidates,
            left_out: &self.left_out,
            ranks: (self.plan.mesh.world > 1).then_some(RanksReport {
                each: &self.ranks.each,
                shown: self.ranks.shown,
                worst: self.ranks.worst,
                all: self.ranks.all,
                asked: self.ranks.asked,
            }),
            slowest: &self.slowest,
            reservations: &self.reservations,
            origins: self.origins.as_ref(),
        }
    }

    /// The ledger of the step: the steady one unless the first alone is shown.
    pub(crate) fn ledger(&self) -> Result<LedgerFile, Problem> {
        let step = self.step.unwrap_or(Step::Steady);
        let storages = self.plan.storages();
        if storages > MOST_SAVED {
            let cause =
                format!("the step makes {storages} storages, and a ledger is saved of up to {MOST_SAVED}");
            return Err(Problem::in_option("--save", cause)
                .mend("save it with fewer micro-batches: from the second on they are alike"));
        }
        let ledger = self.plan.ledger(step).map_err(|error| Problem::anywhere(error.to_string()))?;
        let ops = self.plan.step(step).phases.iter().map(|phase| Some(phase.place().into())).collect();
        let (model, step) = (&self.name, step.as_str());
        let note = format!(
            "peakledger plan {model}, the {step} step at device level: what the dispatcher hands out, the batch and kernel memory"
        );
        Ok(LedgerFile::made(ledger, note, ops))
    }
}

pub(super) fn answer(verdict: Option<Verdict>, asked: bool) -> Answer {
    if asked && verdict.is_some_and(|verdict| !verdict.fits()) { Answer::No } else { Answer::Given }
}

/// The files to be written, neither of which is a file that was read nor the other one.
pub(super) fn targets<'a>(args: &'a Args, read: &[&Input]) -> Result<(Output, Option<&'a Path>), Problem> {
    let output = args.output.request_with_pictures(read)?.listing(&args.list).plotting(args.plot);
    let saved = output::saved(args.save.as_ref(), &output, read)?;
    Ok((output, saved))
}

//! `peakledger fit`: what fits a card, and what would.

use super::search;
use crate::Answer;
use crate::args::{IN_OPTIONS, ListArgs, Model, OutputArgs, alloc_conf, architecture, model};
use crate::from::{FromArgs, Given};
use crate::progress::Progress;
use crate::search_args::SearchArgs;
use crate::step_args::{Candidate, StepArgs, candidates, of_candidate};
use crate::usual::{Change, RECOMPUTE, TOGETHER, changes, together};
use clap::Command;
use peakledger_allocator::Settings;
use peakledger_core::Bytes;
use peakledger_input::{Input, Problem, quoted};
use peakledger_plan::catalogue::{Card, card};
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{Options, Recompute};
use peakledger_plan::parallel::{Look, Parallel, Ranks, Shown, Stack, plan_ranks_closely};
use peakledger_plan::{Choices, FewestGpus, Fit, Plan, RankCosts, Step, Verdict, fewest_gpus};
use peakledger_report::side_by_side::side_by_side;
use peakledger_report::{AS_GIVEN, FitReport, FitRow, Fits, OffloadRule, Reservation};

/// The change that recomputes and offloads no more layers than it takes.
const BY_LAYER: &str = "by layer";

/// Find what fits a card: the largest micro-batch or length, and which strategies buy it
#[derive(clap::Args)]
#[command(after_help = crate::examples::FIT)]
pub(crate) struct Args {
    /// A catalogue name, a config.json, a folder with one, or org/name from the local Hugging Face cache; `-` reads a
    /// config.json from standard input
    #[arg(value_parser = model())]
    pub(super) model: Option<Model>,
    #[command(flatten)]
    from: FromArgs,
    // before what takes options out of the matches: it keeps all of them
    #[command(flatten)]
    given: Given,
    /// The card to fit on: a name of `peakledger list gpus`, or an amount with its unit, as in 24GiB
    #[arg(long, value_name = "NAME|SIZE", help_heading = IN_OPTIONS)]
    gpu: Option<String>,
    /// The caching allocator's settings, as PYTORCH_CUDA_ALLOC_CONF has them: expandable_segments:True, say [default:
    /// torch's]
    #[arg(long, value_name = "KEY:VALUE,…", help_heading = IN_OPTIONS)]
    alloc_conf: Option<String>,
    /// Exit with 1 if the step does not fit as it is given
    #[arg(long, help_heading = IN_OPTIONS)]
    exit_code: bool,
    /// An offload that saves less than this share of the device peak is rejected
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..=100), help_heading = IN_OPTIONS)]
    offload_min_saving: u8,
    /// An offload whose copies take longer than this share of the step's theoretical time is to be tuned
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u8).range(0..=100), help_heading = IN_OPTIONS)]
    offload_max_time: u8,
    /// Another way to run the step, beside the usual ones: "NAME: OPTIONS"; may be repeated
    #[arg(long = "candidate", value_name = "NAME: OPTIONS", allow_hyphen_values = true, help_heading = IN_OPTIONS)]
    candidates: Vec<String>,
    #[command(flatten)]
    search: SearchArgs,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let request = args.from.resolve("fit", args.model.as_ref(), &args.given, || {
        <Args as clap::Args>::augment_args(Command::new("fit"))
    })?;
    if args.from.print_options {
        return request.print();
    }
    args.search.check()?;
    let step = &request.step;
    let Some(gpu) = &args.gpu else {
        let problem = Problem::in_option("--gpu", "what fits depends on the card, and none is named");
        let mend = "add `--gpu a100-80gb` or `--gpu 80GiB`; `peakledger list gpus` shows the known ones";
        return Err(problem.mend(mend));
    };
    let asked = candidates(&args.candidates, step)?;
    if asked.iter().any(|candidate| candidate.name == AS_GIVEN) {
        let problem = Problem::in_option("--candidate", format!("{} is the step itself", quoted(AS_GIVEN)));
        return Err(problem.mend("give it another name"));
    }
    let settings = alloc_conf(args.alloc_conf.as_deref())?;
    let card = card(gpu)?;
    let (model, config) = request.model.open()?;
    let read: Vec<&Input> = config.iter().chain(&request.inputs).collect();
    let output = args.output.request(&read)?.listing(&args.list);
    let try_out = Trial { architecture: architecture(&model.config)?, card: &card, settings };
    if args.search.is_asked() {
        let model = (model.name.as_str(), &model.config);
        return search::run(&args.search, (&request, &args.given), &try_out, model, &output, args.exit_code);
    }

    let TriedOut { plan: given, fit, reservation } =
        try_out.with_plan(step).map_err(|problem| request.blame(problem))?;
    let command = |options: &str| request.plan_with(&args.given, &model.config, options);
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    // a candidate takes the place of a usual change of its name
    let is_asked = |change: &Change| asked.iter().any(|candidate| candidate.name == change.name);
    let usual = |change: &Change, combined| {
        let candidate = Candidate::of(&change.name, &change.options, step)?;
        try_out.row(candidate, combined, &command)
    };
    let mut singles = Vec::new();
    let alone = changes(&given.options, given.planned_without());
    let alone: Vec<Change> = alone.into_iter().filter(|change| !is_asked(change)).collect();
    let progress = Progress::of_plans((alone.len() + asked.len()) as u64, "changes", &output);
    let tried = side_by_side(&alone, |change| {
        let row = usual(change, false);
        progress.one_more();
        row
    });
    for (change, row) in alone.into_iter().zip(tried) {
        match row {
            Ok(row) => {
                rows.push(row);
                singles.push(change);
            }
            Err(problem) => left_out.push((change.name, problem.cause)),
        }
    }
    let mut others = Vec::with_capacity(asked.len());
    for candidate in &asked {
        let row = try_out.row(candidate.clone(), false, &command);
        progress.one_more();
        others.push(row.map_err(|problem| of_candidate(&candidate.name, step, problem))?);
    }
    let fits = |row: &FitRow| row.fit.verdict.fits();
    let single_fits = fit.verdict.fits() || rows.iter().chain(&others).any(fits);
    for (at, level) in TOGETHER.iter().enumerate().filter(|_| !single_fits) {
        // what more is tried together is cheap on one card, and worth it only where less is not enough
        let on_one_card = given.options.parallel == Parallel::default();
        if at > 0 && !on_one_card && rows.iter().any(fits) {
            break;
        }
        let is_enough = |row: &FitRow, names: &[&str]| {
            row.combined && fits(row) && row.name.split(" + ").all(|part| names.contains(&part))
        };
        let open = level.iter().filter(|names| !rows.iter().any(|row| is_enough(row, names)));
        let combined = open.filter_map(|names| together(names, &singles));
        let combined: Vec<Change> = combined.filter(|change| !is_asked(change)).collect();
        let tried = side_by_side(&combined, |change| usual(change, true));
        for (change, row) in combined.into_iter().zip(tried) {
            match row {
                Ok(row) => rows.push(row),
                Err(problem) => left_out.push((change.name, problem.cause)),
            }
        }
    }
    let is_asked = |name: &str| asked.iter().any(|candidate| candidate.name == name);
    if !fit.verdict.fits() && !is_asked(BY_LAYER) {
        if let Some(choices) = try_out.some_layers(&given.options)? {
            let change = Change { name: BY_LAYER.to_owned(), options: choices.written() };
            rows.push(usual(&change, false)?);
        }
        // where all layers recomputed make something fit, so may some of them
        let with_all = rows.iter().filter(|row| {
            fits(row)
                && row.fit.trains_as(&fit)
                && row.fit.options.recompute == Recompute::Full
                && row.combined
        });
        let cheapest = with_all.min_by_key(|row| row.fit.slowest.costs.flops.total());
        if let Some(row) = cheapest {
            let base = Options { recompute: Recompute::None, ..row.fit.options.clone() };
            if let Some(choices) = try_out.some_layers(&base)? {
                let name = row.name.replacen(RECOMPUTE.0, BY_LAYER, 1);
                let options = row.options.replacen(RECOMPUTE.1, &choices.written(), 1);
                rows.push(usual(&Change { name, options }, true)?);
            }
        }
    }
    rows.append(&mut others);

    let report = FitReport {
        name: &model.name,
        plan: &given,
        card: &card,
        fit: &fit,
        reservation: reservation.as_ref(),
        rows: &rows,
        left_out: &left_out,
        fewest_gpus: try_out.fewest_gpus(&given.options),
        offload_rule: OffloadRule { least_saving: args.offload_min_saving, most_time: args.offload_max_time },
        command: &command(""),
        origins: request.origins.as_ref(),
    };
    output.write(&report)?;
    Ok(if args.exit_code && !fit.verdict.fits() { Answer::No } else { Answer::Given })
}

/// Where steps are tried out.
pub(super) struct Trial<'a> {
    pub(super) architecture: Architecture,
    pub(super) card: &'a Card,
    pub(super) settings: Settings,
}

/// What fits of a step, with the plan of the rank that needs most and what the caching allocator reserves for it.
struct TriedOut {
    plan: Plan,
    fit: Fit,
    reservation: Option<Reservation>,
}

impl Trial<'_> {
    fn fit(&self, step: &StepArgs) -> Result<Fit, Problem> {
        let takes = |plan: &Plan| self.verdict(plan);
        let quick = |plan: &Plan| self.quick(plan).verdict;
        Fit::of(&self.architecture, step.options(Some(self.card))?, self.card, &takes, &quick)
    }

    /// The same of a step whose plan is shown: it is planned and replayed once, whole and as `plan` does it.
    fn with_plan(&self, step: &StepArgs) -> Result<TriedOut, Problem> {
        let options = step.options(Some(self.card))?;
        let look = |plan: &Plan, look| {
            let reservation = if look == Look::Close { self.reservation(plan) } else { None };
            let verdict = self.verdict_of(plan, reservation.as_ref());
            let costs = RankCosts::of(plan, Step::Steady, self.card.speeds.as_ref());
            (plan.needs(verdict.needed, None), (reservation, costs))
        };
        let Ranks { plan, shown, each, .. } =
            plan_ranks_closely(&self.architecture, &options, Shown::Worst, look)?;
        let slowest = each.iter().map(|(_, (_, costs))| *costs).reduce(RankCosts::or_slower);
        let reservation = each.into_iter().nth(shown).and_then(|(_, (reservation, _))| reservation);
        let Some(slowest) = slowest else { unreachable!("a world has a rank") };
        let verdict = self.verdict_of(&plan, reservation.as_ref());
        let quick = |plan: &Plan| self.quick(plan).verdict;
        let fit = Fit::around(&self.architecture, options, self.card, (&plan, verdict, slowest), &quick);
        Ok(TriedOut { plan, fit, reservation })
    }

    /// Whether a rank fits, which says of a misfit nothing more.
    pub(super) fn quick(&self, plan: &Plan) -> Fits {
        Reservation::fits(plan, self.settings, self.card)
    }

    /// The same of a rank that takes no more than that; nothing of one that takes more.
    pub(super) fn quick_within(&self, plan: &Plan, most: Bytes) -> Option<Fits> {
        Reservation::fits_within(plan, self.settings, self.card, most)
    }

    /// What a rank takes of the card. Where micro-batches are left out of its step and its replay says nothing for sure of the
    /// whole, that is its device peak: what fits by that has to be replayed whole.
    pub(super) fn verdict(&self, plan: &Plan) -> Verdict {
        let reservation = self.reservation(plan);
        let is_sure = reservation.as_ref().is_none_or(|reservation| reservation.is_of_whole(plan));
        self.sure_of_whole(plan, self.verdict_of(plan, reservation.as_ref()), is_sure)
    }

    /// The same, which says of a misfit nothing more.
    fn quick_verdict(&self, plan: &Plan) -> Verdict {
        let Fits { verdict, is_of_whole, .. } = self.quick(plan);
        self.sure_of_whole(plan, verdict, is_of_whole)
    }

    /// A verdict if it is one on the whole step, or if nothing but that can be; else the one by the device peak.
    fn sure_of_whole(&self, plan: &Plan, verdict: Verdict, is_sure: bool) -> Verdict {
        let by_peak = Verdict::of(plan, self.card, None);
        if is_sure || !by_peak.fits() { verdict } else { by_peak }
    }

    /// The same by what is reserved for it, or by its device peak.
    fn verdict_of(&self, plan: &Plan, reservation: Option<&Reservation>) -> Verdict {
        match reservation {
            Some(reservation) => reservation.verdict(plan, self.card),
            None => Verdict::of(plan, self.card, None),
        }
    }

    /// What the caching allocator reserves for a plan.
    fn reservation(&self, plan: &Plan) -> Option<Reservation> {
        Reservation::of(plan, self.settings, Some(self.card), None)
    }

    /// The layers to recompute and to offload with which the step fits, where it does neither yet.
    fn some_layers(&self, options: &Options) -> Result<Option<Choices>, Problem> {
        let is_open = options.recompute == Recompute::None && !options.offload.activations;
        if !is_open || options.parallel != Parallel::default() || options.stack != Stack::default() {
            return Ok(None);
        }
        let verdict = |plan: &Plan| self.verdict(plan);
        Choices::cheapest(&self.architecture, options, self.card, &verdict)
    }

    /// The fewest GPUs that share out the step so that it fits.
    fn fewest_gpus(&self, options: &Options) -> Option<FewestGpus> {
        fewest_gpus(&self.architecture, options, &|plan| self.quick_verdict(plan))
    }

    fn row(
        &self,
        candidate: Candidate,
        combined: bool,
        command: &dyn Fn(&str) -> String,
    ) -> Result<FitRow, Problem> {
        let Candidate { name, options, step } = candidate;
        let (fit, command) = (self.fit(&step)?, command(&options));
        Ok(FitRow { name, options, command, combined, fit })
    }
}

//! A plan as JSON: bytes are integers, fields are in a fixed order.

use super::PlanReport;
use super::costs::{AddedJson, CostsJson, FiguresJson};
use super::ranks_json::{CommunicatorJson, RankClassJson, WorldJson};
use crate::figures::{mib_of_difference, share};
use crate::{Origins, Reservation};
use peakledger_core::{ByCategory, Category};
use peakledger_plan::{At, Contributor, Plan, PlannedPhase, Step};
use serde::{Serialize, Serializer};

#[derive(Serialize)]
pub(super) struct PlanJson<'a> {
    model: ModelJson<'a>,
    assumptions: Pairs<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_step: Option<StepJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steady_step: Option<StepJson<'a>>,
    peak: PeakJson<'a>,
    device_peak: PlaceJson<'a>,
    outside_bytes: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    communicators: Vec<CommunicatorJson>,
    /// The world, where there is more than one rank; the rank whose plan this is; and all ranks, class by class.
    #[serde(skip_serializing_if = "Option::is_none")]
    world: Option<WorldJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<RankClassJson<'a>>,
    costs: CostsJson<'a>,
    /// What the caching allocator reserves; null where its replay was left out.
    reserved_bytes: Option<u64>,
    allocator: Option<ReservationJson<'a>>,
    verdict: Option<VerdictJson<'a>>,
    /// What must be known beside the verdict.
    caveats: Vec<String>,
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    candidates: Pairs<CandidateJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOutJson<'a>>,
    not_counted: Vec<&'static str>,
    /// Where the options came from, if configs were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a Origins>,
}

#[derive(Serialize)]
struct ModelJson<'a> {
    name: &'a str,
    model_type: &'static str,
    parameters: u64,
    trainable: u64,
}

#[derive(Serialize)]
pub(super) struct StepJson<'a> {
    phases: Vec<PhaseJson<'a>>,
}

#[derive(Serialize)]
struct PhaseJson<'a> {
    phase: &'a str,
    micro_batch: Option<u32>,
    peak_bytes: u64,
    end_bytes: u64,
    by_category: Pairs<u64>,
    device_peak_bytes: u64,
    host_peak_bytes: u64,
    module: &'a str,
    op: &'static str,
}

/// Where a peak is.
#[derive(Serialize)]
struct PlaceJson<'a> {
    step: &'static str,
    phase: &'a str,
    micro_batch: Option<u32>,
    bytes: u64,
}

#[derive(Serialize)]
struct PeakJson<'a> {
    step: &'static str,
    phase: &'a str,
    micro_batch: Option<u32>,
    module: &'a str,
    op: &'static str,
    bytes: u64,
    by_category: Pairs<u64>,
    contributors: Vec<ContributorJson>,
}

#[derive(Serialize)]
struct ContributorJson {
    name: String,
    category: &'static str,
    detail: Option<&'static str>,
    bytes: u64,
    size_mb: f64,
    share: f64,
    count: u32,
}

#[derive(Serialize)]
struct VerdictJson<'a> {
    gpu: &'a str,
    capacity_bytes: u64,
    fits: bool,
    headroom_bytes: i128,
    /// Whether it fits by less than drivers and libraries differ by.
    on_the_edge: bool,
    needed_bytes: u64,
    /// What is held against the capacity.
    compared: &'static str,
    source: &'a str,
}

/// What the caching allocator holds where most is reserved, and whether the card has room for it.
#[derive(Serialize)]
struct ReservationJson<'a> {
    settings: String,
    max_allocated_bytes: u64,
    allocated_bytes: u64,
    tails_bytes: u64,
    returnable_bytes: u64,
    stuck_bytes: u64,
    cache_flushes: u64,
    oom: Option<OomJson<'a>>,
}

/// The request that the card has no room for.
#[derive(Serialize)]
struct OomJson<'a> {
    step: &'static str,
    phase: &'a str,
    micro_batch: Option<u32>,
    requested_bytes: u64,
    segment_bytes: u64,
    device_free_bytes: Option<u64>,
    reserved_bytes: u64,
    allocated_bytes: u64,
    largest_free_block_bytes: u64,
    is_fragmentation: bool,
}

#[derive(Serialize)]
struct CandidateJson<'a> {
    #[serde(flatten)]
    place: PlaceJson<'a>,
    device_peak_bytes: u64,
    reserved_bytes: Option<u64>,
    by_category: Pairs<u64>,
    /// What each category has more at its peak than the baseline at its own.
    moved: Pairs<i128>,
    memory_saving_bytes: i128,
    memory_saving_mb: f64,
    costs: FiguresJson,
    added: AddedJson,
    /// Null without a card, as the plan's own is.
    verdict: Option<VerdictJson<'a>>,
}

/// A usual candidate that could not be planned.
#[derive(Serialize)]
struct LeftOutJson<'a> {
    name: &'a str,
    cause: &'a str,
}

/// An object with its entries in the order given.
struct Pairs<T>(Vec<(String, T)>);

impl<T> Pairs<T> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Serialize> Serialize for Pairs<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'a> PlanJson<'a> {
    pub(super) fn of(report: &'a PlanReport<'a>) -> PlanJson<'a> {
        let plan = report.plan;
        let shown = |step| report.step.is_none_or(|only| only == step);
        let step = |step| shown(step).then(|| StepJson::of(&plan.step(step).phases));
        let assumptions = plan.assumptions().into_iter();
        PlanJson {
            model: ModelJson {
                name: report.name,
                model_type: plan.architecture.family.model_type,
                parameters: plan.parameters,
                trainable: plan.trainable,
            },
            assumptions: Pairs(assumptions.map(|a| (a.topic.to_owned(), a.value)).collect()),
            first_step: step(Step::First),
            steady_step: step(Step::Steady),
            peak: peak_json(plan, report.peak()),
            device_peak: place(plan.device_peak_in(report.step), |phase| phase.device_peak.get()),
            outside_bytes: plan.outside(report.card).get(),
            communicators: report.communicators_json(),
            world: report.world_json(),
            rank: report.ranks.map(|_| plan.options.parallel.rank),
            ranks: report.ranks_json(),
            costs: report.costs_json(),
            reserved_bytes: report.reservation_of(plan).map(|it| it.reserved().get()),
            allocator: report.reservation_of(plan).map(|it| reservation(plan, it)),
            verdict: verdict(report, plan),
            caveats: report.caveats(),
            candidates: Pairs(candidates(report)),
            left_out: report.left_out.iter().map(|(name, cause)| LeftOutJson { name, cause }).collect(),
            not_counted: report.not_counted(),
            from: report.origins,
        }
    }
}

impl StepJson<'_> {
    pub(super) fn of(phases: &[PlannedPhase]) -> StepJson<'_> {
        StepJson { phases: phases.iter().map(phase).collect() }
    }
}

fn phase(phase: &PlannedPhase) -> PhaseJson<'_> {
    PhaseJson {
        phase: phase.phase.as_str(),
        micro_batch: phase.micro_batch,
        peak_bytes: phase.peak.get(),
        end_bytes: phase.end.get(),
        by_category: by_category(&phase.by_category),
        device_peak_bytes: phase.device_peak.get(),
        host_peak_bytes: phase.host_peak.get(),
        module: &phase.module,
        op: phase.op,
    }
}

fn by_category(sums: &ByCategory) -> Pairs<u64> {
    Pairs(sums.iter().map(|(category, bytes)| (category.as_str().to_owned(), bytes.get())).collect())
}

fn moved(before: &ByCategory, after: &ByCategory) -> Pairs<i128> {
    let change = |category: Category| {
        let change = after.get(category).minus(before.get(category));
        (category.as_str().to_owned(), change)
    };
    Pairs(Category::ALL.map(change).into_iter().filter(|(_, change)| *change != 0).collect())
}

fn place<'a>(at: At<'a>, bytes: impl Fn(&PlannedPhase) -> u64) -> PlaceJson<'a> {
    PlaceJson {
        step: at.step.step.as_str(),
        phase: at.phase.phase.as_str(),
        micro_batch: at.phase.micro_batch,
        bytes: bytes(at.phase),
    }
}

fn peak_json<'a>(plan: &Plan, at: At<'a>) -> PeakJson<'a> {
    let total = at.phase.peak;
    let contributor = |c: Contributor| ContributorJson {
        name: c.name,
        category: c.category.as_str(),
        detail: c.detail.map(|detail| detail.as_str()),
        bytes: c.bytes.get(),
        size_mb: c.bytes.mib(),
        share: share(c.bytes, total),
        count: c.count,
    };
    PeakJson {
        step: at.step.step.as_str(),
        phase: at.phase.phase.as_str(),
        micro_batch: at.phase.micro_batch,
        module: &at.phase.module,
        op: at.phase.op,
        bytes: total.get(),
        by_category: by_category(&at.phase.by_category),
        contributors: plan.contributors_at(at).into_iter().map(contributor).collect(),
    }
}

fn verdict<'a>(report: &PlanReport<'a>, plan: &Plan) -> Option<VerdictJson<'a>> {
    let (card, verdict) = (report.card?, report.verdict_of(plan)?);
    Some(VerdictJson {
        gpu: &card.name,
        capacity_bytes: verdict.capacity.get(),
        fits: verdict.fits(),
        headroom_bytes: verdict.headroom(),
        on_the_edge: verdict.is_on_the_edge(),
        needed_bytes: verdict.needed.get(),
        compared: match report.reservation_of(plan) {
            Some(_) => "reserved + outside",
            None => "device_peak + outside",
        },
        source: &card.source,
    })
}

fn reservation<'a>(plan: &'a Plan, it: &Reservation) -> ReservationJson<'a> {
    let oom = it.oom.and_then(|out| {
        let (phase, oom) = (out.phase(plan)?, out.oom);
        Some(OomJson {
            step: out.step.as_str(),
            phase: phase.phase.as_str(),
            micro_batch: phase.micro_batch,
            requested_bytes: oom.requested,
            segment_bytes: oom.segment,
            device_free_bytes: oom.unused,
            reserved_bytes: oom.totals.reserved,
            allocated_bytes: oom.totals.allocated,
            largest_free_block_bytes: oom.largest_free,
            is_fragmentation: oom.is_fragmentation(),
        })
    });
    ReservationJson {
        settings: it.settings.to_string(),
        max_allocated_bytes: it.allocated,
        allocated_bytes: it.peak.allocated,
        tails_bytes: it.peak.tails,
        returnable_bytes: it.peak.returnable,
        stuck_bytes: it.peak.stuck(),
        cache_flushes: it.retries,
        oom,
    }
}

fn candidates<'a>(report: &'a PlanReport<'a>) -> Vec<(String, CandidateJson<'a>)> {
    let before = report.peak().phase.by_category;
    let candidate = |((name, plan), saving): (&'a (String, Plan), i128)| {
        let at = plan.peak_in(report.step);
        let value = CandidateJson {
            place: place(at, |phase| phase.peak.get()),
            device_peak_bytes: plan.device_peak_in(report.step).phase.device_peak.get(),
            reserved_bytes: report.reservation_of(plan).map(|it| it.reserved().get()),
            by_category: by_category(&at.phase.by_category),
            moved: moved(&before, &at.phase.by_category),
            memory_saving_bytes: saving,
            memory_saving_mb: mib_of_difference(saving),
            costs: report.figures_json(plan),
            added: report.added_json(plan),
            verdict: verdict(report, plan),
        };
        (name.clone(), value)
    };
    report.candidates.iter().zip(report.savings()).map(candidate).collect()
}

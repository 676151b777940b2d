//! What a step costs beside the memory it takes, in words and as JSON; and what a candidate's step costs more.

use super::{PlanReport, RankFigures};
use crate::AS_GIVEN;
use crate::figures::{added_time, amount, flop, gbps, signed_seconds};
use crate::times::{self, TimeJson};
use peakledger_plan::{Costs, HostBytes, Picoseconds, Plan, PlannedPhase, RankCosts, Step, StepTime};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct CostsJson<'a> {
    step: &'static str,
    /// Whose they are, where there is more than one: the rank that takes longest, or the one that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    #[serde(flatten)]
    costs: FiguresJson,
    phases: Vec<PhaseCostsJson<'a>>,
    /// The least time at the card's peak rates; null without a card whose rates are known.
    theoretical: Option<TheoreticalJson<'a>>,
}

#[derive(Serialize)]
struct PhaseCostsJson<'a> {
    phase: &'a str,
    micro_batch: Option<u32>,
    #[serde(flatten)]
    costs: FiguresJson,
}

#[derive(Serialize)]
pub(super) struct FiguresJson {
    flops: u128,
    recomputed_flops: u128,
    bytes_moved: u128,
    to_host_bytes: u128,
    from_host_bytes: u128,
    communicated_bytes: u128,
    /// Those of them that go over the network between nodes.
    between_nodes_bytes: u128,
}

#[derive(Serialize)]
struct TheoreticalJson<'a> {
    gpu: &'a str,
    /// The rank that takes longest, which the times are of; of several the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    slowest_rank: Option<u32>,
    #[serde(flatten)]
    time: TimeJson,
    /// The network of a GPU; null where nothing goes over it.
    network: Option<NetworkJson<'a>>,
    source: &'a str,
}

#[derive(Serialize)]
struct NetworkJson<'a> {
    gbps_per_gpu: f64,
    /// Whose that is; null where it is given.
    machine: Option<&'a str>,
    source: &'a str,
}

/// What a candidate's step costs more than the baseline's, each the rank that takes longest; negative where it costs less.
#[derive(Serialize)]
pub(super) struct AddedJson {
    flops: i128,
    recomputed_flops: i128,
    bytes_moved: i128,
    to_host_bytes: i128,
    from_host_bytes: i128,
    communicated_bytes: i128,
    between_nodes_bytes: i128,
    theoretical_seconds: Option<f64>,
}

impl From<Costs> for FiguresJson {
    fn from(costs: Costs) -> FiguresJson {
        FiguresJson {
            flops: costs.flops.total(),
            recomputed_flops: costs.recomputed.total(),
            bytes_moved: costs.bytes_moved(),
            to_host_bytes: costs.host.to_host,
            from_host_bytes: costs.host.from_host,
            communicated_bytes: costs.communicated(),
            between_nodes_bytes: costs.sent.between_nodes,
        }
    }
}

/// The difference of two counts, with its sign.
fn more(after: u128, before: u128) -> i128 {
    let difference = i128::try_from(after.abs_diff(before)).unwrap_or(i128::MAX);
    if after < before { -difference } else { difference }
}

/// The step whose costs are shown, where these steps are.
pub(super) fn costed(shown: Option<Step>) -> Step {
    shown.unwrap_or(Step::Steady)
}

impl PlanReport<'_> {
    /// What a plan's step, or a candidate's, costs the rank that takes longest.
    fn slowest_of(&self, plan: &Plan) -> RankCosts {
        let found = self.known_of(self.slowest, plan).copied();
        let speeds = || self.card.and_then(|card| card.speeds.as_ref());
        found.unwrap_or_else(|| RankCosts::of(plan, costed(self.step), speeds()))
    }

    fn time_of(&self, plan: &Plan) -> Option<StepTime> {
        self.slowest_of(plan).time.ok()
    }

    /// The rank whose costs are shown, and its phases: the one that takes longest, unless another is asked for by its number.
    fn costs_shown(&self) -> (u32, &[PlannedPhase]) {
        let slowest = self.slowest_of(self.plan).rank;
        let shown = self.plan.options.parallel.rank;
        let of_shown = (shown, self.plan.step(costed(self.step)).phases.as_slice());
        let Some(ranks) = self.ranks.filter(|ranks| !ranks.asked && slowest != shown) else {
            return of_shown;
        };
        let class = ranks.each.iter().find(|(_, figures)| figures.costs.rank == slowest);
        let steps = class.into_iter().flat_map(|(_, figures)| &figures.steps);
        let mut of_step = steps.filter(|(step, _)| *step == costed(self.step));
        of_step.next().map_or(of_shown, |(_, phases)| (slowest, phases.as_slice()))
    }

    /// `rank 12, which takes longest`, where there is a rank that takes less.
    fn who_takes_longest(&self) -> Option<String> {
        let slowest = self.slowest_of(self.plan);
        let is_quicker = |figures: &RankFigures| slowest.takes_longer_than(&figures.costs);
        let differ = self.ranks?.each.iter().any(|(_, figures)| is_quicker(figures));
        let most = if slowest.time.is_ok() { "takes longest" } else { "computes most" };
        differ.then(|| format!("rank {}, which {most}", slowest.rank))
    }

    /// The network that the plan reckons with.
    fn network(&self) -> Option<NetworkJson<'_>> {
        let (speeds, parallel) = (self.card?.speeds.as_ref()?, &self.plan.options.parallel);
        let gbps_per_gpu = gbps(speeds.network_bits_per_second(parallel)?);
        let of_machine = speeds.network.as_ref().filter(|_| parallel.network_bits_per_second.is_none());
        Some(NetworkJson {
            gbps_per_gpu,
            machine: of_machine.map(|network| network.machine.as_str()),
            source: of_machine.map_or(AS_GIVEN, |network| &network.source),
        })
    }

    /// How much longer a candidate's step takes than the baseline's, in picoseconds.
    fn added_time(&self, candidate: &Plan) -> Option<i128> {
        Some(self.time_of(candidate)?.step().minus(self.time_of(self.plan)?.step()))
    }

    pub(super) fn costs_json(&self) -> CostsJson<'_> {
        let (rank, phases) = self.costs_shown();
        let each = phases.iter().map(|phase| PhaseCostsJson {
            phase: phase.phase.as_str(),
            micro_batch: phase.micro_batch,
            costs: phase.costs.into(),
        });
        let slowest = self.slowest_of(self.plan);
        let theoretical = slowest.time.ok().and_then(|time| {
            let card = self.card?;
            Some(TheoreticalJson {
                gpu: &card.name,
                slowest_rank: self.ranks.map(|_| slowest.rank),
                time: time.into(),
                network: self.network().filter(|_| time.busy.between_nodes.0 > 0),
                source: &card.speeds.as_ref()?.source,
            })
        });
        CostsJson {
            step: costed(self.step).as_str(),
            rank: self.ranks.map(|_| rank),
            costs: total(phases).into(),
            phases: each.collect(),
            theoretical,
        }
    }

    pub(super) fn figures_json(&self, plan: &Plan) -> FiguresJson {
        self.slowest_of(plan).costs.into()
    }

    pub(super) fn added_json(&self, candidate: &Plan) -> AddedJson {
        let [before, after] = [self.plan, candidate].map(|plan| self.slowest_of(plan).costs);
        AddedJson {
            flops: more(after.flops.total(), before.flops.total()),
            recomputed_flops: more(after.recomputed.total(), before.recomputed.total()),
            bytes_moved: more(after.bytes_moved(), before.bytes_moved()),
            to_host_bytes: more(after.host.to_host, before.host.to_host),
            from_host_bytes: more(after.host.from_host, before.host.from_host),
            communicated_bytes: more(after.communicated(), before.communicated()),
            between_nodes_bytes: more(after.sent.between_nodes, before.sent.between_nodes),
            theoretical_seconds: self.added_time(candidate).map(signed_seconds),
        }
    }

    /// The costs of the step in a sentence.
    pub(super) fn costs_line(&self) -> String {
        let (rank, phases) = self.costs_shown();
        let (costs, slowest) = (total(phases), self.slowest_of(self.plan));
        let whose = match self.who_takes_longest() {
            Some(who) if rank == slowest.rank => format!(", of {who}"),
            Some(_) => format!(", of rank {rank}"),
            None => String::new(),
        };
        let step = costed(self.step).as_str();
        let mut line = format!("costs of the {step} step{whose}: {}", flop(costs.flops.total()));
        if costs.recomputed.total() > 0 {
            line += &format!(", {} of them again", flop(costs.recomputed.total()));
        }
        line += &format!("; {} moved on the card", amount(costs.bytes_moved()));
        if costs.host != HostBytes::default() {
            let (to, from) = (amount(costs.host.to_host), amount(costs.host.from_host));
            line += &format!(", {to} to the host and {from} back");
        }
        if costs.communicated() > 0 {
            line += &format!(", {} sent to other ranks", amount(costs.communicated()));
        }
        if costs.sent.between_nodes > 0 {
            line += &format!(", {} of it between nodes", amount(costs.sent.between_nodes));
        }
        line += &match slowest.time {
            Ok(time) => self.time_in_words(time, rank != slowest.rank),
            Err(unknown) => self
                .card
                .and_then(|card| times::not_known(unknown, card))
                .map(|why| format!("; there is no theoretical time: {why}"))
                .unwrap_or_default(),
        };
        line
    }

    /// `; theoretical on …, at its peak rates: 1.20 s, 0.10 s waiting in the pipeline`.
    fn time_in_words(&self, time: StepTime, of_another: bool) -> String {
        let card = self.card.map(|card| card.full_name.as_deref().unwrap_or(&card.name)).unwrap_or_default();
        let whose = self.who_takes_longest().filter(|_| of_another);
        let whose = whose.map(|who| format!(", by {who}")).unwrap_or_default();
        let mut line = format!("; theoretical on {card}, at its peak rates{whose}: {}", time.step());
        let link = self.card.and_then(|card| card.speeds.as_ref()).map(|speeds| speeds.to_other_cards().1);
        let to_others = format!("to other ranks over {}", link.unwrap_or_default());
        let busy = time.busy;
        let within = Picoseconds(busy.sent.0.saturating_sub(busy.between_nodes.0));
        let between = self.network().map(|network| {
            let whose = network.machine.unwrap_or(AS_GIVEN);
            format!("between nodes at {} Gb/s a GPU ({whose})", network.gbps_per_gpu)
        });
        let parts = [
            (time.bubble, "waiting in the pipeline"),
            (busy.recompute, "to recompute"),
            (busy.host, "over the host link"),
            (within, &to_others),
            (busy.between_nodes, between.as_deref().unwrap_or_default()),
        ];
        for (part, what) in parts.into_iter().filter(|(part, _)| part.0 > 0) {
            line += &format!(", {part} {what}");
        }
        line
    }

    /// What the step as it is costs, in a few words.
    pub(super) fn own_costs_cell(&self) -> String {
        let slowest = self.slowest_of(self.plan);
        slowest.time.map_or_else(|_| flop(slowest.costs.flops.total()), |time| time.step().to_string())
    }

    /// What a candidate costs more: `+68.80 ms`, or without the rates of a card `+46.2 TFLOP`.
    pub(super) fn added_cell(&self, candidate: &Plan) -> String {
        let flops = |plan: &Plan| self.slowest_of(plan).costs.flops.total();
        if let Some(added) = self.added_time(candidate) {
            return added_time(added);
        }
        let added = more(flops(candidate), flops(self.plan));
        format!("{}{}", if added < 0 { "-" } else { "+" }, flop(added.unsigned_abs()))
    }

    /// What a candidate does more for the memory that it saves: `46.2 TFLOP again`.
    pub(super) fn price_cell(&self, candidate: &Plan) -> String {
        let [before, after] = [self.plan, candidate].map(|plan| self.slowest_of(plan).costs);
        let mut parts = Vec::new();
        if after.recomputed.total() > before.recomputed.total() {
            parts.push(format!("{} again", flop(after.recomputed.total() - before.recomputed.total())));
        }
        let over_link = |costs: Costs| costs.host.to_host.saturating_add(costs.host.from_host);
        if over_link(after) > over_link(before) {
            parts.push(format!("{} over the link", amount(over_link(after) - over_link(before))));
        }
        if after.communicated() > before.communicated() {
            parts.push(format!("{} sent", amount(after.communicated() - before.communicated())));
        }
        parts.join(", ")
    }

    /// The title of what candidates cost.
    pub(super) fn costs_title(&self) -> &'static str {
        if self.time_of(self.plan).is_some() { "theoretical cost" } else { "cost" }
    }
}

/// What phases cost together.
fn total(phases: &[PlannedPhase]) -> Costs {
    phases.iter().map(|phase| phase.costs).sum()
}

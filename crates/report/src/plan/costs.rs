//! What a step costs beside the memory it takes, in words and as JSON; and what a candidate's step costs more.

use super::PlanReport;
use crate::AS_GIVEN;
use crate::figures::{added_time, amount, flop, gbps, no_network, seconds, signed_seconds};
use peakledger_plan::{Costs, HostBytes, Picoseconds, Plan, Step, TheoreticalTime, Unknown};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct CostsJson<'a> {
    step: &'static str,
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
    step_seconds: f64,
    recompute_seconds: f64,
    host_seconds: f64,
    communicated_seconds: f64,
    /// What of that is spent in groups that span nodes.
    between_nodes_seconds: f64,
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

/// What a candidate's step costs more than the baseline's; negative where it costs less.
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

impl PlanReport<'_> {
    /// The step whose costs are shown.
    fn costed(&self) -> Step {
        self.step.unwrap_or(Step::Steady)
    }

    fn costs_of(&self, plan: &Plan) -> Costs {
        plan.step(self.costed()).costs()
    }

    /// The least time that a plan's step takes, or which rate is not known; nothing without a card's rates.
    fn known_time_of(&self, plan: &Plan) -> Option<Result<TheoreticalTime, Unknown>> {
        let speeds = self.card?.speeds.as_ref()?;
        Some(TheoreticalTime::of(&self.costs_of(plan), speeds, &plan.options.parallel))
    }

    fn time_of(&self, plan: &Plan) -> Option<TheoreticalTime> {
        self.known_time_of(plan)?.ok()
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
        Some(self.time_of(candidate)?.step.minus(self.time_of(self.plan)?.step))
    }

    pub(super) fn costs_json(&self) -> CostsJson<'_> {
        let step = self.plan.step(self.costed());
        let phases = step.phases.iter().map(|phase| PhaseCostsJson {
            phase: phase.phase.as_str(),
            micro_batch: phase.micro_batch,
            costs: phase.costs.into(),
        });
        let theoretical = self.time_of(self.plan).and_then(|time| {
            let card = self.card?;
            Some(TheoreticalJson {
                gpu: &card.name,
                step_seconds: seconds(time.step),
                recompute_seconds: seconds(time.recompute),
                host_seconds: seconds(time.host),
                communicated_seconds: seconds(time.sent),
                between_nodes_seconds: seconds(time.between_nodes),
                network: self.network().filter(|_| time.between_nodes.0 > 0),
                source: &card.speeds.as_ref()?.source,
            })
        });
        CostsJson {
            step: step.step.as_str(),
            costs: step.costs().into(),
            phases: phases.collect(),
            theoretical,
        }
    }

    pub(super) fn figures_json(&self, plan: &Plan) -> FiguresJson {
        self.costs_of(plan).into()
    }

    pub(super) fn added_json(&self, candidate: &Plan) -> AddedJson {
        let (before, after) = (self.costs_of(self.plan), self.costs_of(candidate));
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
        let costs = self.costs_of(self.plan);
        let mut line = format!("costs of the {} step: {}", self.costed().as_str(), flop(costs.flops.total()));
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
        let card = self.card.map(|card| card.full_name.as_deref().unwrap_or(&card.name)).unwrap_or_default();
        let time = self.known_time_of(self.plan);
        if let Some(Ok(time)) = time {
            line += &format!("; theoretical on {card}, at its peak rates: {}", time.step);
            let link =
                self.card.and_then(|card| card.speeds.as_ref()).map(|speeds| speeds.to_other_cards().1);
            let to_others = format!("to other ranks over {}", link.unwrap_or_default());
            let within = Picoseconds(time.sent.0.saturating_sub(time.between_nodes.0));
            let between = self.network().map(|network| {
                let whose = network.machine.unwrap_or(AS_GIVEN);
                format!("between nodes at {} Gb/s a GPU ({whose})", network.gbps_per_gpu)
            });
            let parts = [
                (time.recompute, "to recompute"),
                (time.host, "over the host link"),
                (within, &to_others),
                (time.between_nodes, between.as_deref().unwrap_or_default()),
            ];
            for (part, what) in parts.into_iter().filter(|(part, _)| part.0 > 0) {
                line += &format!(", {part} {what}");
            }
            let mut plans = std::iter::once(self.plan).chain(self.candidates.iter().map(|(_, plan)| plan));
            if plans.any(|plan| plan.mesh.pp > 1) {
                line += "; how long the stages of a pipeline wait for each other is not in it: `fit --search` \
                         and `fit --among` count it";
            }
        }
        if let Some(Err(unknown)) = time {
            line += &match unknown {
                Unknown::Type => format!(
                    "; {card} has no rate for a type that is multiplied, so there is no theoretical time"
                ),
                Unknown::Network => format!("; there is no theoretical time: {}", no_network(card)),
            };
        }
        line
    }

    /// What the step as it is costs, in a few words.
    pub(super) fn own_costs_cell(&self) -> String {
        let time = self.time_of(self.plan).map(|time| time.step.to_string());
        time.unwrap_or_else(|| flop(self.costs_of(self.plan).flops.total()))
    }

    /// What a candidate costs more: `+68.80 ms`, or without the rates of a card `+46.2 TFLOP`.
    pub(super) fn added_cell(&self, candidate: &Plan) -> String {
        let flops = |plan: &Plan| self.costs_of(plan).flops.total();
        if let Some(added) = self.added_time(candidate) {
            return added_time(added);
        }
        let added = more(flops(candidate), flops(self.plan));
        format!("{}{}", if added < 0 { "-" } else { "+" }, flop(added.unsigned_abs()))
    }

    /// What a candidate does more for the memory that it saves: `46.2 TFLOP again`.
    pub(super) fn price_cell(&self, candidate: &Plan) -> String {
        let (before, after) = (self.costs_of(self.plan), self.costs_of(candidate));
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

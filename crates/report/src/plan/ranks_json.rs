//! The ranks of a world as JSON.

use super::PlanReport;
use super::json::StepJson;
use peakledger_plan::Step;
use serde::Serialize;
use std::ops::Range;

/// The sizes of a world.
#[derive(Serialize)]
pub(super) struct WorldJson {
    ranks: u32,
    tp: u32,
    cp: u32,
    dp: u32,
    pp: u32,
    ep: u32,
    etp: u32,
    schedule: Option<&'static str>,
    virtual_stages: u32,
    gpus_per_node: u32,
    classes: usize,
    worst_rank: u32,
    /// What the ranks of a node have on its cpu together, where they have any; and which node has most.
    host: Option<HostJson>,
}

#[derive(Serialize)]
struct HostJson {
    host: u32,
    bytes: u64,
}

/// Ranks that run the same thing.
#[derive(Serialize)]
pub(super) struct RankClassJson<'a> {
    /// Pairs of the first and the last.
    ranks: Vec<[u32; 2]>,
    count: u32,
    stage: u32,
    /// The place in the context parallel group, where its ranks differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    cp_rank: Option<u32>,
    layers: Vec<[u32; 2]>,
    parameters: u64,
    is_worst: bool,
    peak: PeakJson<'a>,
    device_peak_bytes: u64,
    reserved_bytes: Option<u64>,
    outside_bytes: u64,
    host_peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_step: Option<StepJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steady_step: Option<StepJson<'a>>,
}

#[derive(Serialize)]
struct PeakJson<'a> {
    step: &'static str,
    phase: &'a str,
    micro_batch: Option<u32>,
    module: &'a str,
    op: &'static str,
    bytes: u64,
}

/// A process group of the rank.
#[derive(Serialize)]
pub(super) struct CommunicatorJson {
    name: &'static str,
    ranks: u32,
    bytes: u64,
}

impl PlanReport<'_> {
    pub(super) fn world_json(&self) -> Option<WorldJson> {
        let ranks = self.ranks?;
        let (mesh, parallel) = (self.plan.mesh, &self.plan.options.parallel);
        Some(WorldJson {
            ranks: mesh.world,
            tp: mesh.tp,
            cp: mesh.cp,
            dp: mesh.dp,
            pp: mesh.pp,
            ep: mesh.ep,
            etp: mesh.etp,
            schedule: (mesh.pp > 1).then(|| parallel.schedule.as_str()),
            virtual_stages: parallel.virtual_stages,
            gpus_per_node: parallel.gpus_per_node,
            classes: ranks.each.len(),
            worst_rank: ranks.each.get(ranks.worst).map_or(0, |(class, _)| class.first()),
            host: ranks
                .node(parallel.gpus_per_node)
                .map(|(host, bytes)| HostJson { host, bytes: bytes.get() }),
        })
    }

    pub(super) fn ranks_json(&self) -> Vec<RankClassJson<'_>> {
        let Some(ranks) = self.ranks else { return Vec::new() };
        let pairs = |ranges: &[Range<u32>]| ranges.iter().map(|range| [range.start, range.end - 1]).collect();
        let classes = ranks.each.iter().enumerate().map(|(at, (class, figures))| {
            let step = |step| {
                let (_, phases) = figures.steps.iter().find(|(of, _)| *of == step).filter(|_| ranks.all)?;
                Some(StepJson::of(phases))
            };
            let peak = &figures.phase;
            RankClassJson {
                ranks: pairs(&class.ranks),
                count: class.count(),
                stage: class.class.stage,
                cp_rank: class.class.cp,
                layers: pairs(&class.layers),
                parameters: figures.parameters,
                is_worst: at == ranks.worst,
                peak: PeakJson {
                    step: figures.step.as_str(),
                    phase: peak.phase.as_str(),
                    micro_batch: peak.micro_batch,
                    module: &peak.module,
                    op: peak.op,
                    bytes: peak.peak.get(),
                },
                device_peak_bytes: figures.device_peak.get(),
                reserved_bytes: figures.reservation.as_ref().map(|it| it.reserved().get()),
                outside_bytes: figures.outside.get(),
                host_peak_bytes: figures.host_peak.get(),
                first_step: step(Step::First),
                steady_step: step(Step::Steady),
            }
        });
        classes.collect()
    }

    pub(super) fn communicators_json(&self) -> Vec<CommunicatorJson> {
        let groups = self.plan.communicators().into_iter();
        groups
            .map(|group| CommunicatorJson { name: group.name, ranks: group.ranks, bytes: group.bytes.get() })
            .collect()
    }
}

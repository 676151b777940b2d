//! The search for programs: every combination that can be, in one order on every machine.

use super::beyond::{BeyondJson, FixedJson};
use super::{SearchReport, SearchRow};
use crate::Origins;
use crate::json::write_json;
use crate::times::TimeJson;
use peakledger_core::Bytes;
use serde::Serialize;
use std::io;

#[derive(Serialize)]
struct SearchJson<'a> {
    model: &'a str,
    parameters: Option<u64>,
    gpu: &'a str,
    capacity_bytes: u64,
    /// Sequences of a step, in every combination.
    global_batch_size: u64,
    /// Followed by the options of a row, it plans that row.
    command: &'a str,
    dimensions: Vec<DimensionJson<'a>>,
    tried: u64,
    possible: usize,
    fitting: usize,
    /// How many may, near the limit: no replay was run to its end.
    open: usize,
    /// What was said already of what the search would vary.
    fixed: Vec<FixedJson<'a>>,
    /// Among the rows the quickest that fits with room to spare, neither on the edge nor with caches given back; null where none
    /// is known to.
    quickest_with_room: Option<usize>,
    /// Those that can be: first those that fit, the quickest first.
    rows: Vec<RowJson<'a>>,
    /// Where none fits: what the search does not vary and that helps.
    beyond: Vec<BeyondJson<'a>>,
    not_possible: Vec<RefusedJson<'a>>,
    /// What must be known beside the best row.
    caveats: Vec<String>,
    not_counted: Vec<&'static str>,
    /// Where the options came from, if configs were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a Origins>,
}

#[derive(Serialize)]
struct DimensionJson<'a> {
    name: &'a str,
    values: Vec<&'a str>,
}

#[derive(Serialize)]
struct RowJson<'a> {
    name: String,
    options: String,
    /// The value of each dimension.
    values: Vec<&'a str>,
    dp: u32,
    micro_batch_size: u64,
    gradient_accumulation_steps: u32,
    /// Null where that takes a replay that was not run to its end: near the limit.
    fits: Option<bool>,
    /// It fits with less to spare than a CUDA context is taken for.
    on_the_edge: bool,
    headroom_bytes: i128,
    device_peak_bytes: u64,
    /// Null where no replay was run to its end: then the headroom is at most that.
    reserved_bytes: Option<u64>,
    /// How often the allocator gives back all that it has cached; null where it was not found out.
    cache_flushes: Option<u64>,
    outside_bytes: u64,
    /// The rank that needs most, as far as is known, whose bytes these are; of several the first. The caching allocator may
    /// reserve more for another, which a replay finds out.
    worst_rank: u32,
    /// The least time by the card's peak rates; null where they, or the network's, are not known.
    theoretical: Option<TimeJson>,
    /// The rank that takes longest, whose times and costs these are; of several the first.
    slowest_rank: u32,
    flops: u128,
    recomputed_flops: u128,
    to_host_bytes: u128,
    from_host_bytes: u128,
    communicated_bytes: u128,
    between_nodes_bytes: u128,
    /// Whether no other one that fits takes no more memory and no more time.
    pareto: bool,
}

#[derive(Serialize)]
struct RefusedJson<'a> {
    count: u64,
    option: Option<&'a str>,
    cause: &'a str,
}

impl SearchReport<'_> {
    pub(super) fn write_json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let dimensions = self.dimensions.iter().map(|of| DimensionJson {
            name: &of.name,
            values: of.values.iter().map(|value| value.name.as_str()).collect(),
        });
        let json = SearchJson {
            model: self.name,
            parameters: self.plan.map(|plan| plan.parameters),
            gpu: &self.card.name,
            capacity_bytes: self.card.total.get(),
            global_batch_size: self.sequences,
            command: self.command,
            dimensions: dimensions.collect(),
            tried: self.tried(),
            possible: self.rows.len(),
            fitting: self.fitting(),
            open: self.open(),
            fixed: self.fixed_json(),
            quickest_with_room: self.roomy(),
            rows: self.rows.iter().enumerate().map(|(at, row)| self.row_json(at, row)).collect(),
            beyond: self.beyond_json(),
            not_possible: self
                .refused
                .iter()
                .map(|refused| RefusedJson {
                    count: refused.count,
                    option: refused.option.as_deref(),
                    cause: &refused.cause,
                })
                .collect(),
            caveats: self.caveats(),
            not_counted: self.not_counted(),
            from: self.origins,
        };
        write_json(out, &json)
    }

    fn row_json(&self, at: usize, row: &SearchRow) -> RowJson<'_> {
        let (tried, slowest) = (&row.tried, &row.tried.slowest);
        let costs = &slowest.costs;
        RowJson {
            name: self.name_of(row),
            options: self.options_of(row),
            values: self.values(row).into_iter().map(|value| value.name.as_str()).collect(),
            dp: row.dp,
            micro_batch_size: row.micro_batch_size,
            gradient_accumulation_steps: row.gradient_accumulation_steps,
            fits: row.is_known_to_fit(),
            on_the_edge: row.is_known_on_the_edge(),
            headroom_bytes: tried.verdict.headroom(),
            device_peak_bytes: tried.device_peak.get(),
            reserved_bytes: row.reserved().map(Bytes::get),
            cache_flushes: row.flushes(),
            outside_bytes: tried.outside.get(),
            worst_rank: tried.rank,
            theoretical: slowest.time.ok().map(TimeJson::from),
            slowest_rank: slowest.rank,
            flops: costs.flops.total(),
            recomputed_flops: costs.recomputed.total(),
            to_host_bytes: costs.host.to_host,
            from_host_bytes: costs.host.from_host,
            communicated_bytes: costs.communicated(),
            between_nodes_bytes: costs.sent.between_nodes,
            pareto: self.front.contains(&at),
        }
    }
}

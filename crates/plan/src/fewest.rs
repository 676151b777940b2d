//! The fewest ranks among which a step is shared out so that it fits a card.

use crate::config::Architecture;
use crate::fit::{Extent, needed_where_it_fits};
use crate::options::Options;
use crate::parallel::{Parallel, Sharding};
use crate::{Plan, Verdict};

/// Data parallel ranks beyond this are not looked for.
const MOST: u32 = 1 << 14;

/// Numbers of whole nodes that are looked at.
const MOST_NODES: u32 = 8;

/// The fewest GPUs that share a step out so that it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FewestGpus {
    /// However they lie on nodes.
    pub gpus: u32,
    /// Those that fill whole nodes, where it takes more than one.
    pub in_whole_nodes: Option<u32>,
}

/// The fewest GPUs with which the rank that needs most fits, at the same sizes of all groups but the data parallel one;
/// nothing where ranks share out nothing, or where no number fits. Each more is expected to need no more than the one before
/// it; should it not, the number that is found still fits, and one rank fewer in each group does not.
pub fn fewest_gpus(
    architecture: &Architecture,
    options: &Options,
    verdict: &(dyn Fn(&Plan) -> Verdict + Sync),
) -> Option<FewestGpus> {
    if options.parallel.sharding == Sharding::Replicated {
        return None;
    }
    let among = |dp: u32| {
        let parallel = Parallel { gpus: None, dp: Some(dp), rank: 0, ..options.parallel.clone() };
        Options { parallel, ..options.clone() }
    };
    let fits_among = |dp: u32| {
        // what may need most of the ranks is planned first: mostly it says that it does not fit
        [Extent::Peak, Extent::Replay]
            .into_iter()
            .all(|extent| needed_where_it_fits(architecture, among(dp), extent, verdict).is_some())
    };
    let mut enough = 1;
    while !fits_among(enough) {
        enough = enough.checked_mul(2).filter(|dp| *dp <= MOST)?;
    }
    let mut too_few = enough / 2;
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if fits_among(middle) { enough = middle } else { too_few = middle }
    }
    let world = |dp: u32| among(dp).mesh().ok().map(|mesh| mesh.world);
    let (gpus, of_node) = (world(enough)?, options.parallel.gpus_per_node.max(1));
    let fills_nodes = |dp: &u32| world(*dp).is_some_and(|world| world.is_multiple_of(of_node));
    let whole = || {
        let mut filled =
            (enough..=enough.saturating_add(of_node.saturating_mul(MOST_NODES))).filter(fills_nodes);
        filled.find(|dp| *dp == enough || fits_among(*dp)).and_then(world)
    };
    Some(FewestGpus { gpus, in_whole_nodes: if gpus > of_node { whole() } else { None } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use peakledger_core::Bytes;
    use peakledger_input::Source;

    /// The number that is found is the one that trying one after the other finds.
    #[test]
    fn it_finds_what_a_scan_finds() {
        let config = r#"{"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 64, "tie_word_embeddings": false}"#;
        let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
        let parallel = Parallel { sharding: Sharding::FullShard, ..Parallel::default() };
        let options = Options { seq_len: Some(16), parallel, ..Options::default() };
        let peak = |dp: u32| {
            let parallel = Parallel { dp: Some(dp), ..options.parallel.clone() };
            let planned = crate::plan(architecture.clone(), Options { parallel, ..options.clone() }).unwrap();
            planned.device_peak_in(None).phase.device_peak
        };
        let peaks: Vec<Bytes> = (1..=8).map(peak).collect();
        assert!(peaks.is_sorted_by(|before, after| before >= after), "{peaks:?}");
        for capacity in peaks.iter().flat_map(|peak| [*peak, Bytes::new(peak.get() - 1)]) {
            let verdict =
                |plan: &Plan| Verdict { needed: plan.device_peak_in(None).phase.device_peak, capacity };
            let scan = (1..).zip(&peaks).find(|(_, peak)| **peak <= capacity).map(|(dp, _)| dp);
            let found = fewest_gpus(&architecture, &options, &verdict).map(|found| found.gpus);
            match scan {
                Some(dp) => assert_eq!(found, Some(dp), "{capacity}"),
                None => assert!(found.is_none_or(|dp| dp > 8), "{capacity}: {found:?}"),
            }
        }
        // whole nodes are filled, beyond one
        let nodes_of = |gpus_per_node: u32| {
            let parallel = Parallel { gpus_per_node, ..options.parallel.clone() };
            let options = Options { parallel, ..options.clone() };
            let capacity = peaks[4];
            let verdict =
                |plan: &Plan| Verdict { needed: plan.device_peak_in(None).phase.device_peak, capacity };
            fewest_gpus(&architecture, &options, &verdict).map(|found| (found.gpus, found.in_whole_nodes))
        };
        assert!(peaks[3] > peaks[4], "{peaks:?}");
        assert_eq!(nodes_of(4), Some((5, Some(8))));
        assert_eq!(nodes_of(5), Some((5, None)));
        assert_eq!(nodes_of(1), Some((5, Some(5))));
        let replicated = Options { parallel: Parallel::default(), ..options };
        let anything = |_: &Plan| Verdict { needed: Bytes::ZERO, capacity: Bytes::ZERO };
        assert_eq!(fewest_gpus(&architecture, &replicated, &anything), None);
    }
}

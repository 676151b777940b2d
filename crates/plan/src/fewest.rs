//! The fewest ranks among which a step is shared out so that it fits a card.

use crate::config::Architecture;
use crate::fit::{Extent, needed_where_it_fits};
use crate::options::Options;
use crate::parallel::{Parallel, Sharding};
use crate::{Plan, Verdict};

/// Data parallel ranks beyond this are not looked for.
const MOST: u32 = 1 << 14;

/// The fewest GPUs with which the rank that needs most fits, at the same sizes of all groups but the data parallel one;
/// nothing where ranks share out nothing, or where no number fits. Each more is expected to need no more than the one before
/// it; should it not, the number that is found still fits, and one rank fewer in each group does not.
pub fn fewest_gpus(
    architecture: &Architecture,
    options: &Options,
    verdict: &(dyn Fn(&Plan) -> Verdict + Sync),
) -> Option<u32> {
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
    among(enough).mesh().ok().map(|mesh| mesh.world)
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
            let found = fewest_gpus(&architecture, &options, &verdict);
            match scan {
                Some(dp) => assert_eq!(found, Some(dp), "{capacity}"),
                None => assert!(found.is_none_or(|dp| dp > 8), "{capacity}: {found:?}"),
            }
        }
        let replicated = Options { parallel: Parallel::default(), ..options };
        let anything = |_: &Plan| Verdict { needed: Bytes::ZERO, capacity: Bytes::ZERO };
        assert_eq!(fewest_gpus(&architecture, &replicated, &anything), None);
    }
}

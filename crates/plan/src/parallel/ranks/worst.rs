//! Which classes may need most, where that is known before any is planned.

use super::class::{RankClass, classes, parts_of};
use crate::config::Architecture;
use crate::options::Options;
use crate::parallel::Sharding;
use crate::parallel::data::leaving::Leaving;
use crate::parallel::data::parts::{Keeping, Parts};
use peakledger_input::Problem;

/// The classes that one may look at alone for the device peak: the others keep no more, and no earlier.
///
/// # Errors
/// As [`classes`].
pub(crate) fn classes_that_may_need_most(
    architecture: &Architecture,
    options: &Options,
) -> Result<Vec<RankClass>, Problem> {
    let mut all = classes(architecture, options)?;
    // of uneven parts and shards the first are the largest
    all.retain(|class| class.class.tp.is_none_or(|tp| tp == 0));
    if options.parallel.sharding.is_fsdp() {
        all.retain(|class| class.class.dp.is_none_or(|dp| dp == 0));
    } else if all.iter().any(|class| class.class.dp.is_some()) {
        let mesh = options.mesh()?;
        let of_stage = |stage| {
            let parts = parts_of(architecture, options, &mesh, (stage, 0))?;
            Ok(parts_that_may_need_most(options, &parts))
        };
        let most: Vec<Option<Vec<u32>>> = (0..mesh.pp).map(of_stage).collect::<Result<_, Problem>>()?;
        // the places are the first of their runs, as those of classes are
        all.retain(|RankClass { class, .. }| match (most.get(class.stage as usize), &class.dp) {
            (Some(Some(most)), Some(dp)) => most.contains(dp),
            _ => true,
        });
    }
    Ok(all)
}

/// The places whose parts may need most, where that is surely known.
fn parts_that_may_need_most(options: &Options, parts: &Parts) -> Option<Vec<u32>> {
    let (is_stage_1, width) = (options.parallel.sharding == Sharding::Zero1, options.implied().width());
    match (options.offload.optimizer, options.grad_dtype) {
        (false, None) => Some(parts.that_may_need_most(Keeping { last_comes_first: !is_stage_1, width })),
        (true, None) if is_stage_1 => {
            let bucket = options.parallel.data.zero.reduce_bucket_size;
            Some(Leaving { bucket, width, stepped: options.stepped_in().width() }.that_may_need_most(parts))
        }
        // summed in fp32, or sent to the host while backward runs, gradients are there in pieces, at moments of which none is
        // surely the worst
        _ => None,
    }
}

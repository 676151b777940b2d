//! For which modules ZeRO 3 fetches in a micro-batch, in order, from a forward pass alone
//! (`record_module`, `deepspeed/runtime/zero/partitioned_param_coordinator.py`).

use crate::options::Recompute;
use crate::torch::{ModuleId, Torch};

/// A forward pass alone.
pub(super) fn forward(called: Vec<ModuleId>) -> Vec<ModuleId> {
    std::iter::once(ModuleId(0)).chain(called).collect()
}

/// Forward as modules were called; then backward, through them the other way round, from the outermost of them inwards. A
/// checkpoint calls its modules once more when the first of them that has parameters asks for what it saved.
pub(super) fn trace(
    torch: &Torch,
    recompute: Recompute,
    has_parameters: impl Fn(ModuleId) -> bool,
    (called, returned): (Vec<ModuleId>, Vec<ModuleId>),
) -> Vec<ModuleId> {
    let root = ModuleId(0);
    let mut trace = vec![root];
    trace.extend(&called);
    trace.push(root);
    let mut recomputed = None;
    for module in returned.into_iter().rev() {
        trace.push(module);
        let checkpoint = checkpoint_of(torch, recompute, module);
        if checkpoint.is_some() && checkpoint != recomputed && has_parameters(module) {
            let is_within = |called: &&ModuleId| checkpoint_of(torch, recompute, **called) == checkpoint;
            trace.extend(called.iter().filter(is_within));
            recomputed = checkpoint;
        }
    }
    trace
}

/// The checkpoint that a module is in, by its number.
fn checkpoint_of(torch: &Torch, recompute: Recompute, module: ModuleId) -> Option<u32> {
    let layer = || torch.tape.borrow().layer(module);
    match recompute {
        Recompute::None => None,
        Recompute::Full | Recompute::Selective => layer(),
        Recompute::Every(together) => layer().map(|layer| layer / together.get()),
        Recompute::Block(first) => layer().filter(|layer| *layer < first.get()), // of one stage
        Recompute::Layers(layers) => layer().filter(|layer| layers.contains(*layer)),
    }
}

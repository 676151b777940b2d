//! The flat buffer of ZeRO 1 and 2: parameters are laid side by side in it once, before the first step, and are views of it
//! from then on (`DeepSpeedZeroOptimizer.__init__`, `deepspeed/runtime/zero/stage_1_and_2.py`, 0.19).

use crate::nn::Parameter;
use crate::options::Options;
use crate::parallel::{Mesh, communicators};
use crate::torch::tape::{EMPTY_CACHE, Tape};
use crate::torch::{Dtype, Tensor, Torch};
use peakledger_core::{Category, Device};
use std::rc::Rc;

/// Lays parameters side by side in one buffer. A card that has room for it beside them holds both for a moment
/// (`flatten_on_accelerator`); with any other they go to the host, where it is made, and it comes back in one piece.
pub(super) fn flattened(
    torch: &Rc<Torch>,
    options: &Options,
    mesh: &Mesh,
    parameters: &[&Parameter],
    (numbers, dtype): (u64, Dtype),
) -> Tensor {
    let bytes = numbers.saturating_mul(dtype.width());
    let has_room = room(options, mesh, &torch.tape.borrow()).is_none_or(|room| bytes <= room);
    torch.once(|| {
        if has_room {
            on_the_card(torch, parameters, (numbers, dtype))
        } else {
            over_the_host(torch, parameters, (numbers, dtype))
        }
    })
}

fn on_the_card(torch: &Rc<Torch>, parameters: &[&Parameter], (numbers, dtype): (u64, Dtype)) -> Tensor {
    let flat = buffer(torch, (numbers, dtype));
    torch.launch("cat");
    go(torch, parameters);
    flat
}

fn over_the_host(torch: &Rc<Torch>, parameters: &[&Parameter], (numbers, dtype): (u64, Dtype)) -> Tensor {
    let bytes = |numbers: u64| numbers.saturating_mul(dtype.width());
    let of_each = parameters.iter().map(|parameter| parameter.tensor.layout().numel());
    let copied = of_each.fold(0, u64::saturating_add);
    let copies = torch.on(Device::Cpu, || buffer(torch, (copied, dtype)));
    torch.launch("_to_copy");
    torch.sends_to_host(bytes(copied));
    go(torch, parameters);
    torch.launch(EMPTY_CACHE);
    let on_host = torch.on(Device::Cpu, || buffer(torch, (numbers, dtype)));
    torch.launch("cat");
    drop(copies);
    let flat = buffer(torch, (numbers, dtype));
    torch.launch("_to_copy");
    torch.fetches_from_host(bytes(numbers));
    drop(on_host);
    flat
}

fn buffer(torch: &Rc<Torch>, (numbers, dtype): (u64, Dtype)) -> Tensor {
    torch.place_named(numbers, dtype, Category::Parameter, "flat parameters")
}

/// What parameters were in before they became views.
fn go(torch: &Torch, parameters: &[&Parameter]) {
    let now = torch.tape.borrow().now();
    parameters.iter().for_each(|parameter| parameter.tensor.relabel(|stored| stored.death = now));
}

/// Bytes of the card that nothing has taken yet, where it is known how many it has.
fn room(options: &Options, mesh: &Mesh, tape: &Tape) -> Option<u64> {
    let parallel = &options.parallel;
    let groups = communicators(parallel, mesh, mesh.place(parallel.rank).pp, false, false);
    let groups = groups.iter().map(|group| group.bytes.get());
    let there =
        tape.stored.iter().filter(|stored| stored.device == Device::Gpu && stored.outlives_the_step());
    let taken = groups.chain(there.map(|stored| stored.bytes)).fold(0, u64::saturating_add);
    Some(options.device_memory?.get().saturating_sub(taken))
}

//! Who asks for memory: what the frames of torch tell of the block that is asked for under them.
//!
//! The frame nearest to the allocation that tells anything decides, so a forward that is computed again within backward is
//! a forward. What no frame tells is not guessed at here.

use crate::snapshot::{Action, Frame, Snapshot, StackId, Texts};
use peakledger_core::Phase;

/// Who asks for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// A call of a module.
    Forward,
    /// A batch is brought to the device.
    Input,
    /// autograd's engine.
    Backward,
    /// autograd makes the gradient that a parameter keeps.
    Gradient,
    /// An optimizer makes its state.
    OptimizerState,
    /// An optimizer computes.
    Optimizer,
    /// A module is moved, made or loaded.
    Parameter,
    /// Ranks exchange data.
    Communication,
    /// A library asks for its workspace.
    Kernel,
}

/// Which frames tell it.
enum Frames {
    /// Of a Python file in whose path this is, these functions; none for any.
    Python(&'static str, &'static [&'static str]),
    /// C++ functions with this in their names.
    Cpp(&'static str),
}
use Frames::{Cpp, Python};

/// The first that fits a frame. Names and paths are those of torch 2.0 to 2.15 and of the projects named.
const RULES: &[(Maker, Frames)] = &[
    // aten/src/ATen/cuda/CublasHandlePool.cpp
    (Maker::Kernel, Cpp("at::cuda::getNewWorkspace")),
    (Maker::Kernel, Cpp("at::cuda::getCUDABlasLtWorkspace")),
    // torch/csrc/distributed/c10d/reducer.cpp: DistributedDataParallel's buckets
    (Maker::Communication, Cpp("c10d::Reducer::")),
    (Maker::Communication, Python("/torch/distributed/distributed_c10d.py", &[])),
    // torch/csrc/autograd/functions/accumulate_grad.cpp, torch/csrc/autograd/engine.cpp
    (Maker::Gradient, Cpp("AccumulateGrad")),
    (Maker::Backward, Cpp("torch::autograd::Engine::")),
    (Maker::Backward, Python("/torch/autograd/graph.py", &["_engine_run_backward"])),
    (Maker::Backward, Python("/torch/autograd/__init__.py", &["backward", "grad", "_make_grads"])),
    // torch/optim/adam.py and its like; bitsandbytes/optim/optimizer.py
    (Maker::OptimizerState, Python("/torch/optim/", &["_init_group"])),
    (Maker::OptimizerState, Python("/bitsandbytes/optim/", &["init_state"])),
    (Maker::Optimizer, Python("/torch/optim/", &[])),
    (Maker::Optimizer, Python("/bitsandbytes/optim/", &[])),
    // Module.to and Module.cuda; transformers; accelerate's loading
    (Maker::Parameter, Python("/torch/nn/modules/module.py", &["_apply", "convert"])),
    (Maker::Parameter, Python("/transformers/modeling_utils.py", &["from_pretrained"])),
    (Maker::Parameter, Python("/accelerate/utils/modeling.py", &["set_module_tensor_to_device"])),
    (Maker::Forward, Python("/torch/nn/modules/module.py", &["_call_impl"])),
    // the loader's own thread; Trainer._prepare_input
    (Maker::Input, Python("/torch/utils/data/", &[])),
    (Maker::Input, Python("/transformers/trainer.py", &["_prepare_input", "_prepare_inputs"])),
];

impl Maker {
    /// What a frame tells.
    fn of(frame: &Frame, texts: &Texts) -> Option<Maker> {
        let file = texts.text(frame.file?).replace('\\', "/");
        let name = frame.name.map(|name| texts.text(name)).unwrap_or_default();
        let is_python = file.ends_with(".py");
        let fits = |frames: &Frames| match frames {
            Python(path, names) => {
                is_python && file.contains(path) && (names.is_empty() || names.contains(&name.as_str()))
            }
            Cpp(symbol) => !is_python && name.contains(symbol),
        };
        RULES.iter().find(|(_, frames)| fits(frames)).map(|(maker, _)| *maker)
    }

    fn is_backward(self) -> bool {
        matches!(self, Maker::Backward | Maker::Gradient)
    }
}

/// What a stack tells.
#[derive(Clone, Copy, Default)]
struct Told {
    maker: Option<Maker>,
    /// Whether autograd's engine is anywhere in it.
    in_backward: bool,
}

/// A stretch of allocations that one part of a step asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Forward,
    Backward,
    Update,
    Other,
}

/// Who asks for memory, of every stack and every allocation of a device.
pub(crate) struct Makers {
    stacks: Vec<Told>,
    /// The parts of the steps, by the event that each begins with, counted from the device's first.
    parts: Vec<(u32, Part)>,
}

impl Makers {
    pub(crate) fn of(snapshot: &Snapshot, device: u32) -> Makers {
        let texts = &snapshot.texts;
        let frames: Vec<Option<Maker>> =
            snapshot.stacks.all_frames().iter().map(|frame| Maker::of(frame, texts)).collect();
        let told = |stack: u32| {
            let ids = snapshot.stacks.ids(StackId(stack)).iter();
            let mut makers = ids.filter_map(|frame| frames.get(frame.index()).copied().flatten());
            let maker = makers.next();
            let in_backward = maker.into_iter().chain(makers).any(Maker::is_backward);
            Told { maker, in_backward }
        };
        let count = u32::try_from(snapshot.stacks.count()).unwrap_or(u32::MAX);
        let mut makers = Makers { stacks: (0..count).map(told).collect(), parts: Vec::new() };
        for (number, stack) in snapshot.events.stacks_of(Action::Alloc, snapshot.trace(device)) {
            let part = makers.part(stack);
            if makers.parts.last().is_none_or(|(_, last)| *last != part) {
                makers.parts.push((number, part));
            }
        }
        makers
    }

    fn told(&self, stack: StackId) -> Told {
        self.stacks.get(stack.0 as usize).copied().unwrap_or_default()
    }

    /// The part that the next allocation, of this stack, is in.
    fn part(&self, stack: StackId) -> Part {
        let told = self.told(stack);
        let within_backward = || matches!(self.parts.last(), Some((_, Part::Backward)));
        match told.maker {
            _ if told.in_backward => Part::Backward,
            // Python is in backward() until it asks for memory again; autograd's own threads have no Python to record
            None if stack == StackId::NONE && within_backward() => Part::Backward,
            Some(Maker::Forward) => Part::Forward,
            Some(Maker::Optimizer | Maker::OptimizerState) => Part::Update,
            _ => Part::Other,
        }
    }

    fn part_at(&self, event: u32) -> Option<usize> {
        self.parts.partition_point(|(first, _)| *first <= event).checked_sub(1)
    }

    /// Who asked for a block, by its stack and the event that handed it out.
    pub(crate) fn maker(&self, stack: StackId, event: Option<u32>) -> Option<Maker> {
        let in_backward = || {
            let part = self.parts.get(self.part_at(event?)?)?;
            (part.1 == Part::Backward).then_some(Maker::Backward)
        };
        match self.told(stack).maker {
            None if stack == StackId::NONE => in_backward(),
            maker => maker,
        }
    }

    /// Whether a block is there when another part of a step asks for memory.
    pub(crate) fn outlives_its_part(&self, born: Option<u32>, died: Option<u32>) -> bool {
        let Some(born) = born else { return true };
        let next = self.part_at(born).and_then(|part| self.parts.get(part + 1));
        died.is_none_or(|died| next.is_some_and(|(first, _)| *first < died))
    }

    /// The phases of the parts, by the event that each begins with; nothing where there is no backward and no update to
    /// tell apart.
    pub(crate) fn phases(&self) -> Vec<(u32, Phase)> {
        let phase = |part| match part {
            Part::Forward => Some(Phase::Forward),
            Part::Backward => Some(Phase::Backward),
            Part::Update => Some(Phase::Update),
            Part::Other => None,
        };
        let mut phases: Vec<(u32, Phase)> =
            self.parts.iter().filter_map(|(first, part)| Some((*first, phase(*part)?))).collect();
        phases.dedup_by(|next, before| next.1 == before.1);
        match phases.iter().any(|(_, phase)| *phase != Phase::Forward) {
            true => phases,
            false => Vec::new(),
        }
    }
}

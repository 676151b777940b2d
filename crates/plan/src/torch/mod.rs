//! PyTorch without the data.
//!
//! A [`Tensor`] is a layout, a type and a shared handle on a storage; a storage's birth and death are the [`Tape`]. An op
//! ([`ops`]) allocates its outputs, hands [`autograd`] what torch's derivative rules save and lets go of the rest. So
//! modules written against this read like the modules they mirror, and a strategy sits where torch has it: autocast is a
//! cast at the door of an op, a checkpoint runs its block without saving and again in backward.

pub(crate) mod autocast;
pub(crate) mod autograd;
pub(crate) mod checkpoint;
pub(crate) mod cost;
pub(crate) mod deferred;
mod dtype;
pub(crate) mod facts;
pub(crate) mod hooks;
pub(crate) mod kernel;
pub(crate) mod kv_cache;
mod layout;
pub(crate) mod network;
pub(crate) mod offload;
pub(crate) mod ops;
pub(crate) mod postponed;
pub(crate) mod reentrant;
mod stream;
pub(crate) mod tape;
mod tensor;
pub(crate) mod trail;

pub use cost::{Costs, Flops, HostBytes};
pub use dtype::Dtype;
pub(crate) use layout::Layout;
pub use network::SentBytes;
pub use stream::Stream;
pub(crate) use tape::{ModuleId, Tape};
pub(crate) use tensor::{Saved, Tensor};

use autocast::Autocast;
use autograd::{Leaf, SavedTensorHooks};
use checkpoint::Selected;
use deferred::Deferred;
use hooks::{Calls, ModuleHooks};
use peakledger_core::{Category, Detail, Device, Phase};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tape::{Mark, Module, ModuleName, Once, Ran};
use trail::Trail;

/// The session: the tape, and the modes that torch keeps for a thread.
pub(crate) struct Torch {
    pub(crate) tape: RefCell<Tape>,
    handles: tensor::Handles,
    pub(crate) grad_enabled: Cell<bool>,
    pub(crate) module: Cell<ModuleId>,
    /// What an op's outputs are: activations in forward, temporaries in backward and update.
    pub(crate) purpose: Cell<(Category, Option<Detail>)>,
    /// Where an op's outputs are: on the host where an optimizer runs there.
    pub(crate) device: Cell<Device>,
    /// The stream that they are allocated on.
    stream: Cell<Stream>,
    /// Set when a recomputation has all it needs: what is left of the block runs without leaving a trace, as torch
    /// leaves it by an exception.
    pub(crate) halted: Cell<bool>,
    pub(crate) autocast: RefCell<Option<Autocast>>,
    /// Whether autograd's thread runs, not the loop's.
    in_backward: Cell<bool>,
    /// What cuBLAS gets as a workspace, and whether it has it: in the loop's thread, in autograd's.
    pub(crate) cublas_workspace: Cell<u64>,
    cublas: (Cell<bool>, Cell<bool>),
    /// Leaves that are no parameters, made in this forward pass. The graph keeps them as long as its output lives.
    pub(crate) leaves: RefCell<Vec<(Tensor, Rc<Leaf>)>>,
    /// What Python functions keep in their context: no hook sees it, and it goes with the whole graph.
    pub(crate) contexts: RefCell<Vec<Tensor>>,
    hooks: RefCell<Vec<Rc<dyn SavedTensorHooks>>>,
    /// What brings parameters to the device and takes them away, if anything does.
    pub(crate) module_hooks: RefCell<Option<Rc<dyn ModuleHooks>>>,
    /// Whether they are told of each module.
    pub(crate) says_modules: Cell<bool>,
    /// What a selective checkpoint keeps while its block runs.
    selected: RefCell<Option<Rc<Selected>>>,
    /// Gradients of weights that wait, where they do (zero-bubble schedules).
    deferred: RefCell<Option<Vec<Deferred>>>,
    sequence: Cell<u32>,
    tally: cost::Tally,
    /// Where the run passes through the layers, where some of them are left out.
    pub(crate) trail: RefCell<Option<Trail>>,
    /// What a model that decodes keeps of the tokens before.
    pub(crate) kv_cache: RefCell<Option<kv_cache::KvCache>>,
    /// What else is recorded, where somebody asks for it.
    pub(crate) facts: RefCell<Option<facts::Facts>>,
}

const ACTIVATION: (Category, Option<Detail>) = (Category::Activation, None);
const TEMPORARY: (Category, Option<Detail>) = (Category::Workspace, Some(Detail::Temporary));

impl Torch {
    /// A session with room for about so many ops, on a card of that compute capability.
    pub(crate) fn new(ops: usize, capability: Option<(u8, u8)>) -> Rc<Torch> {
        let root = Module { parent: None, name: ModuleName::Word("") };
        let (stored, ran) = (Vec::with_capacity(ops), Vec::with_capacity(ops));
        Rc::new(Torch {
            tape: RefCell::new(Tape { modules: vec![root], stored, ran, ..Tape::default() }),
            handles: tensor::Handles::with_room_for(ops),
            grad_enabled: Cell::new(true),
            module: Cell::new(ModuleId(0)),
            purpose: Cell::new(ACTIVATION),
            device: Cell::new(Device::Gpu),
            stream: Cell::new(Stream::Compute),
            halted: Cell::new(false),
            autocast: RefCell::new(None),
            in_backward: Cell::new(false),
            cublas_workspace: Cell::new(kernel::cublas_workspace(capability)),
            cublas: (Cell::new(false), Cell::new(false)),
            leaves: RefCell::new(Vec::new()),
            contexts: RefCell::new(Vec::new()),
            hooks: RefCell::new(Vec::new()),
            module_hooks: RefCell::new(None),
            says_modules: Cell::new(false),
            selected: RefCell::new(None),
            deferred: RefCell::new(None),
            sequence: Cell::new(0),
            tally: cost::Tally::default(),
            trail: RefCell::new(None),
            kv_cache: RefCell::new(None),
            facts: RefCell::new(None),
        })
    }

    /// Names a module.
    pub(crate) fn module(&self, parent: ModuleId, name: ModuleName) -> ModuleId {
        let mut tape = self.tape.borrow_mut();
        let id = ModuleId(u32::try_from(tape.modules.len()).unwrap_or(u32::MAX));
        tape.modules.push(Module { parent: Some(parent), name });
        id
    }

    /// Starts an op: the next moment of the tape.
    pub(crate) fn launch(&self, op: &'static str) {
        if !self.halted.get() {
            self.tally.product.set(false);
            self.tape.borrow_mut().ran.push(Ran { op, module: self.module.get() });
        }
    }

    /// Begins a phase.
    pub(crate) fn begin(&self, phase: Phase, micro_batch: Option<u32>) {
        let kind = phase.clone();
        self.begin_as(phase, micro_batch, &kind);
    }

    /// Begins a phase that is of that kind, whatever its name.
    pub(crate) fn begin_as(&self, phase: Phase, micro_batch: Option<u32>, kind: &Phase) {
        self.module.set(ModuleId(0));
        self.purpose.set(match kind {
            Phase::Backward | Phase::Update | Phase::ZeroGrad => TEMPORARY,
            _ => ACTIVATION,
        });
        let mut tape = self.tape.borrow_mut();
        let first = tape.next();
        tape.marks.push(Mark { phase, micro_batch, first, costs: Costs::default() });
    }

    /// Ends a phase: a moment at which only what outlives it is there.
    pub(crate) fn end(&self) {
        self.module.set(ModuleId(0));
        self.launch(END);
        let costs = self.take_costs();
        if let Some(mark) = self.tape.borrow_mut().marks.last_mut() {
            mark.costs = costs;
        }
    }

    /// Runs `body` as code of that module.
    pub(crate) fn inside<T>(&self, module: ModuleId, body: impl FnOnce() -> T) -> T {
        let outer = self.module.replace(module);
        let hooks = if self.says_modules.get() && outer != module {
            self.module_hooks.borrow().clone()
        } else {
            None
        };
        if let Some(hooks) = &hooks {
            hooks.called(module);
        }
        let result = body();
        if let Some(hooks) = hooks {
            hooks.returned(module);
        }
        self.module.set(outer);
        result
    }

    /// Runs `body` with what it does said to be of that module, which is not called by that.
    pub(crate) fn said_of<T>(&self, module: ModuleId, body: impl FnOnce() -> T) -> T {
        let outer = self.module.replace(module);
        let result = body();
        self.module.set(outer);
        result
    }

    /// A weight that is used outside its module, whole, where ranks share it out and it is not here.
    pub(crate) fn whole(&self, weight: &Tensor) -> Option<Tensor> {
        let hooks = self.module_hooks.borrow().clone();
        hooks.and_then(|hooks| hooks.whole(weight))
    }

    /// Backward comes to a node of that module.
    pub(crate) fn goes_back_to(&self, module: ModuleId) {
        if self.says_modules.get() {
            let hooks = self.module_hooks.borrow().clone();
            hooks.into_iter().for_each(|hooks| hooks.backward_at(module));
        }
    }

    /// The modules of a forward pass that leaves no trace: in the order in which they are called, and in which they return.
    pub(crate) fn calls(&self, forward: impl FnOnce()) -> (Vec<ModuleId>, Vec<ModuleId>) {
        let calls = Rc::new(Calls::default());
        let hooks = self.module_hooks.borrow_mut().replace(calls.clone());
        self.says_modules.set(true);
        self.halted.set(true);
        self.off_the_trail(forward);
        self.halted.set(false);
        *self.module_hooks.borrow_mut() = hooks;
        (calls.called.take(), calls.returned.take())
    }

    /// Runs `body` with its tensors on that device.
    pub(crate) fn on<T>(&self, device: Device, body: impl FnOnce() -> T) -> T {
        let outer = self.device.replace(device);
        let result = body();
        self.device.set(outer);
        result
    }

    /// Runs `body` in moments of the first step alone.
    pub(crate) fn once<T>(&self, body: impl FnOnce() -> T) -> T {
        let now = || (self.tape.borrow().next().0, self.costs_so_far());
        let (from, before) = now();
        let result = body();
        let (to, after) = now();
        self.tape.borrow_mut().once.push(Once { moments: from..to, costs: after - before });
        result
    }

    /// Runs `body` under `torch.no_grad()`.
    pub(crate) fn without_grad<T>(&self, body: impl FnOnce() -> T) -> T {
        let outer = self.grad_enabled.replace(false);
        let result = body();
        self.grad_enabled.set(outer);
        result
    }

    /// Runs `body` with these hooks on what autograd saves.
    pub(crate) fn with_hooks<T>(&self, hooks: Rc<dyn SavedTensorHooks>, body: impl FnOnce() -> T) -> T {
        self.hooks.borrow_mut().push(hooks);
        let result = body();
        self.hooks.borrow_mut().pop();
        result
    }

    fn pack(&self, tensor: &Tensor) -> Saved {
        let hooks = self.hooks.borrow().last().cloned();
        match hooks {
            Some(hooks) => hooks.pack(tensor),
            None => Saved::Plain(tensor.kept()),
        }
    }

    fn next_sequence(&self) -> u32 {
        let sequence = self.sequence.get();
        self.sequence.set(sequence.saturating_add(1));
        sequence
    }
}

/// The name of the moment that ends a phase.
pub(crate) const END: &str = "end of phase";

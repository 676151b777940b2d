//! A tensor without its data: a layout, a type, and a shared handle on a storage. The last handle to go frees the
//! storage, so ownership in the modules is liveness on the tape.

use super::autograd::{Edge, Packed};
use super::tape::{NEVER, Role, StorageId, Stored, rounded};
use super::{ACTIVATION, Dtype, Layout, ModuleId, Torch};
use peakledger_core::{Category, Detail, Device, Moment};
use std::cell::RefCell;
use std::rc::Rc;

/// A handle on a storage, which is alive as long as one is.
struct Storage {
    torch: Rc<Torch>,
    id: StorageId,
}

impl Clone for Storage {
    fn clone(&self) -> Storage {
        self.torch.handles.one_more(self.id);
        Storage { torch: self.torch.clone(), id: self.id }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if self.torch.handles.one_less(self.id) {
            self.torch.tape.borrow_mut().bury(self.id);
        }
    }
}

/// How many handles there are on each storage, by its number: a storage is no allocation of its own.
pub(super) struct Handles(RefCell<Vec<u32>>);

impl Handles {
    pub(super) fn with_room_for(storages: usize) -> Handles {
        Handles(RefCell::new(Vec::with_capacity(storages)))
    }

    fn first(&self, id: StorageId) {
        let mut counts = self.0.borrow_mut();
        if counts.len() < id.0 as usize {
            counts.resize(id.0 as usize, 0); // what a kernel keeps has none
        }
        counts.push(1);
    }

    fn one_more(&self, id: StorageId) {
        if let Some(count) = self.0.borrow_mut().get_mut(id.0 as usize) {
            *count += 1;
        }
    }

    /// Whether that was the last.
    fn one_less(&self, id: StorageId) -> bool {
        let mut counts = self.0.borrow_mut();
        let Some(count) = counts.get_mut(id.0 as usize) else { return false };
        *count -= 1;
        *count == 0
    }
}

/// A tensor.
#[derive(Clone)]
pub(crate) struct Tensor {
    storage: Storage,
    layout: Layout,
    dtype: Dtype,
    edge: Option<Edge>,
}

impl Tensor {
    pub(crate) fn torch(&self) -> &Rc<Torch> {
        &self.storage.torch
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The size of a dimension; negative ones count from the end.
    pub(crate) fn size(&self, dim: isize) -> u64 {
        self.layout.size(dim)
    }

    pub(crate) fn sizes(&self) -> &[u64] {
        self.layout.sizes()
    }

    pub(crate) fn storage_id(&self) -> StorageId {
        self.storage.id
    }

    /// The bytes of its elements.
    pub(crate) fn bytes(&self) -> u64 {
        self.layout.numel().saturating_mul(self.dtype.width())
    }

    /// The bytes of its elements; those that are repeated by a stride of 0 lie there once.
    pub(crate) fn bytes_seen(&self) -> u64 {
        self.layout.elements_seen().saturating_mul(self.dtype.width())
    }

    /// Where its storage is.
    pub(crate) fn device(&self) -> Device {
        self.torch().tape.borrow().get(self.storage.id).map_or(Device::Gpu, |stored| stored.device)
    }

    /// Whether its storage is of that category.
    pub(crate) fn is_a(&self, category: Category) -> bool {
        let tape = self.torch().tape.borrow();
        tape.get(self.storage.id).is_some_and(|stored| stored.category == category)
    }

    /// Whether a gradient flows back from here.
    pub(crate) fn requires_grad(&self) -> bool {
        self.edge.is_some()
    }

    pub(crate) fn edge(&self) -> Option<&Edge> {
        self.edge.as_ref()
    }

    pub(crate) fn with_edge(mut self, edge: Option<Edge>) -> Tensor {
        self.edge = edge;
        self
    }

    /// The same storage, cut from the graph.
    pub(crate) fn detach(&self) -> Tensor {
        Tensor { storage: self.storage.clone(), layout: self.layout.clone(), dtype: self.dtype, edge: None }
    }

    /// The same storage under another layout, not part of the graph.
    pub(crate) fn alias(&self, layout: Layout) -> Tensor {
        Tensor { storage: self.storage.clone(), layout, dtype: self.dtype, edge: None }
    }

    /// The same storage as a part of the tensor, of that layout and type, not part of the graph.
    pub(crate) fn shard(&self, layout: Layout, dtype: Dtype) -> Tensor {
        Tensor { storage: self.storage.clone(), layout, dtype, edge: None }
    }

    /// Keeps the tensor for backward, as the saved-tensor hooks in force want it.
    pub(crate) fn save(&self) -> Saved {
        self.torch().pack(self)
    }

    /// The tensor as autograd keeps it: cut from the graph, and marked if it is an activation.
    pub(crate) fn kept(&self) -> Tensor {
        self.relabel(|stored| {
            if (stored.category, stored.detail) == ACTIVATION {
                stored.detail = Some(Detail::SavedTensor);
            }
        });
        self.detach()
    }

    /// A view of it is taken: from now on torch's tracker counts it, if it did not before.
    pub(crate) fn seen(&self) {
        let next = self.torch().tape.borrow().next();
        self.relabel(|stored| stored.tracked = stored.tracked.min(next));
    }

    /// What is in it is copied into a buffer, and its own storage goes, whoever holds a handle.
    pub(crate) fn moves_into_a_buffer(&self) {
        self.torch().tape.borrow_mut().bury(self.storage.id);
    }

    /// Renames what the storage is.
    pub(crate) fn relabel(&self, label: impl FnOnce(&mut Stored)) {
        if let Some(stored) = self.torch().tape.borrow_mut().get_mut(self.storage.id) {
            label(stored);
        }
    }

    /// Gives the storage a name of its own, in place of the op's that made it.
    pub(crate) fn rename(&self, category: Category, name: &'static str) {
        self.relabel(|stored| {
            (stored.category, stored.detail) = (category, None);
            stored.role = Role::Named { name };
        });
    }
}

/// What autograd kept of a tensor.
pub(crate) enum Saved {
    /// The tensor itself.
    Plain(Tensor),
    /// What a hook made of it: a promise to recompute.
    Packed(Box<dyn Packed>),
}

impl Saved {
    /// The tensor again, for the backward formula that wants it.
    pub(crate) fn unpack(&self) -> Tensor {
        let tensor = match self {
            Saved::Plain(tensor) => tensor.clone(),
            Saved::Packed(packed) => packed.unpack(),
        };
        tensor.torch().note_needed(&tensor);
        tensor
    }
}

impl Torch {
    /// Allocates what the running op puts out.
    pub(crate) fn empty(self: &Rc<Self>, layout: Layout, dtype: Dtype) -> Tensor {
        self.moves(layout.elements_seen().saturating_mul(dtype.width()));
        self.unwritten(layout, dtype)
    }

    /// The same, of which what is written does not count as moved.
    pub(crate) fn unwritten(self: &Rc<Self>, layout: Layout, dtype: Dtype) -> Tensor {
        let (category, detail) = self.purpose.get();
        let now = self.tape.borrow().now();
        self.allocate(layout, dtype, category, detail, self.module.get(), Role::Output, now)
    }

    /// Allocates a tensor of a known kind that is there from the next moment on.
    pub(crate) fn place(
        self: &Rc<Self>,
        layout: Layout,
        dtype: Dtype,
        (category, detail): (Category, Option<Detail>),
        module: ModuleId,
        role: Role,
    ) -> Tensor {
        let next = self.tape.borrow().next();
        self.allocate(layout, dtype, category, detail, module, role, next)
    }

    /// The same of so many numbers side by side, of no module and with a name of their own.
    pub(crate) fn place_named(
        self: &Rc<Self>,
        numbers: u64,
        dtype: Dtype,
        category: Category,
        name: &'static str,
    ) -> Tensor {
        let (kind, role) = ((category, None), Role::Named { name });
        self.place(Layout::contiguous(&[numbers]), dtype, kind, ModuleId(0), role)
    }

    #[allow(clippy::too_many_arguments)] // the columns of a storage
    fn allocate(
        self: &Rc<Self>,
        layout: Layout,
        dtype: Dtype,
        category: Category,
        detail: Option<Detail>,
        module: ModuleId,
        role: Role,
        birth: Moment,
    ) -> Tensor {
        let stored = Stored {
            bytes: rounded(layout.numel().saturating_mul(dtype.width())),
            birth,
            tracked: birth,
            death: NEVER,
            device: self.device.get(),
            stream: self.stream.get(),
            category,
            detail,
            dtype,
            module,
            role,
            copied_for: None,
        };
        let id = match self.halted.get() {
            true => StorageId::NOWHERE,
            false => {
                self.note(|facts| facts.layouts.push(layout.clone()));
                let id = self.tape.borrow_mut().bear(stored);
                self.handles.first(id);
                id
            }
        };
        Tensor { storage: Storage { torch: self.clone(), id }, layout, dtype, edge: None }
    }
}

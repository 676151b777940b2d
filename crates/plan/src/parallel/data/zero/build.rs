//! What there is before the first step: the flat buffer, the rank's part of it, and a hook on every gradient.

use super::buckets::Running;
use super::{Placed, Zero};
use crate::nn::Parameter;
use crate::options::Options;
use crate::parallel::data::flat::flattened;
use crate::parallel::data::parts::Parts;
use crate::parallel::{Mesh, Sharding};
use crate::torch::{Dtype, Stream, Tensor, Torch};
use peakledger_core::{Category, Device};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

impl Zero {
    /// Flattens a model's parameters, and gives with the hooks what the optimizer steps.
    pub(crate) fn new(
        torch: &Rc<Torch>,
        options: &Options,
        mesh: &Mesh,
        parameters: &[Parameter],
    ) -> (Rc<Zero>, Vec<Parameter>) {
        let (ranks, rank) = (mesh.replicas(), mesh.replica_of(options.parallel.rank));
        let trained: Vec<&Parameter> = parameters.iter().filter(|p| p.leaf.is_some()).collect();
        let dtype = trained.first().map_or(Dtype::F32, |parameter| parameter.tensor.dtype());
        let parts = Parts::of(trained.iter().map(|parameter| parameter.tensor.layout().numel()), ranks);
        let places = places_of(torch, &trained, &parts, rank);
        let partition = parts.numbers();
        let numbers = partition.saturating_mul(u64::from(ranks));
        let flat = flattened(torch, options, mesh, &trained, (numbers, dtype));
        let offloaded = options.offload.optimizer;
        let offload_buffers =
            if offloaded { on_its_way(torch, &trained, (partition, dtype)) } else { Vec::new() };
        let device = if offloaded { Device::Cpu } else { Device::Gpu };
        let name = "master weights of the partition";
        let master = || torch.place_named(partition, options.stepped_in(), Category::MasterWeight, name);
        let master = torch.on(device, master);
        let Some(first) = trained.first() else {
            unreachable!("a model of which nothing is trained is refused")
        };
        let master = first.stepped_as(master).plain();
        let zero = &options.parallel.data.zero;
        let overlaps = zero.overlap_comm == Some(true);
        let this = Rc::new(Zero {
            torch: torch.clone(),
            partitions_gradients: options.parallel.sharding == Sharding::Zero2,
            ranks,
            peers: mesh.replica_peers(),
            dtype,
            sums_in_fp32: options.grad_dtype == Some(Dtype::F32) && dtype != Dtype::F32,
            bucket: zero.reduce_bucket_size,
            buckets: if overlaps { 2 } else { 1 },
            reduces_on: if overlaps { Stream::Reduce } else { Stream::Compute },
            offloaded,
            parameters: places,
            partition,
            _flat: flat,
            _offload_buffers: offload_buffers,
            master: master.clone(),
            clips: options.clip_grad_norm,
            norms: RefCell::default(),
            is_last: Cell::new(true),
            running: RefCell::new(Running::default()),
        });
        if offloaded {
            this.place_host_gradient();
        }
        for (index, placed) in this.parameters.iter().enumerate() {
            let Some(leaf) = &placed.parameter.leaf else { continue };
            let zero = Rc::downgrade(&this);
            leaf.on_grad(move |leaf| {
                if let Some(zero) = zero.upgrade() {
                    zero.ready(index, leaf);
                }
            });
        }
        (this, vec![master])
    }

    /// The gradient of the rank's part on the host, which stays there.
    fn place_host_gradient(&self) {
        let (numbers, dtype) = (self.partition, self.master.tensor.dtype());
        let name = "gradient of the partition";
        let grad = || self.torch.place_named(numbers, dtype, Category::Gradient, name);
        let grad = self.torch.on(Device::Cpu, grad);
        if let Some(leaf) = &self.master.leaf {
            *leaf.grad.borrow_mut() = Some(grad);
        }
    }
}

/// Where each parameter is in the flat buffer, and how much of it is in the rank's part.
fn places_of(torch: &Torch, trained: &[&Parameter], parts: &Parts, rank: u32) -> Vec<Placed> {
    let postpones = torch.postpones();
    let layer = |parameter: &Parameter| {
        let layer = postpones.then(|| torch.tape.borrow().layer(parameter.module));
        layer.flatten().map(|layer| layer as usize)
    };
    let places = trained.iter().zip(parts.places(rank));
    let placed = places.map(|(parameter, (range, in_own))| Placed {
        parameter: (*parameter).clone(),
        range,
        in_own,
        layer: layer(parameter),
    });
    placed.collect()
}

/// Room on both sides for the largest gradient on its way to the host, and there for the part on its way back.
fn on_its_way(torch: &Rc<Torch>, trained: &[&Parameter], (partition, dtype): (u64, Dtype)) -> Vec<Tensor> {
    let place = |device, numbers, category, name| {
        torch.on(device, || torch.place_named(numbers, dtype, category, name))
    };
    let largest = trained.iter().map(|parameter| parameter.tensor.layout().numel()).max().unwrap_or(0);
    let there = |device| place(device, largest, Category::CommunicationBuffer, "largest gradient on its way");
    vec![
        place(Device::Cpu, partition, Category::Parameter, "partition on its way back"),
        there(Device::Cpu),
        there(Device::Gpu),
    ]
}

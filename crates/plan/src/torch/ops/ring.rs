//! Attention over a sequence that context parallel ranks share (`_templated_ring_attention`,
//! `torch/distributed/tensor/experimental/_context_parallel/_attention.py`): a rank attends with its queries to its own keys and
//! values, then to those of each rank before it, as they come round, and merges what it finds by the log-sums, in fp32.
//!
//! A causal sequence is balanced where it is cut into two parts a rank, one from its front and one from its back: to what comes
//! from a rank before, all queries attend, and to the first half of it; to what comes from a rank behind, the second half of the
//! queries to all of it. One that is not balanced has nothing to look for in what comes from behind.
//!
//! A name is bound here as it is there, until it is bound again or the function returns: that is what stays beside the next step.

use super::attention::Fused;
use super::collectives::Group;
use super::pointwise::{like, mul, sigmoid, sub, to};
use super::view::contiguous;
use crate::torch::autograd::{Grads, record, recorded};
use crate::torch::network::Collective;
use crate::torch::tape::{NEVER, Role};
use crate::torch::{Dtype, Layout, Tensor};
use peakledger_core::Category;
use smallvec::smallvec;

/// How keys and values come to the ranks (`set_rotate_method`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RotateMethod {
    /// All at once.
    #[default]
    AllGather,
    /// From rank to rank.
    AllToAll,
}

/// The ranks that share a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    pub(crate) group: Group,
    pub(crate) rotate: RotateMethod,
    /// Whether each has a part from the front and one from the back.
    pub(crate) is_balanced: bool,
}

/// What a rank attends to what with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    All,
    FirstHalfOfKeys,
    SecondHalfOfQueries,
    Nothing,
}

impl Ring {
    /// Whether a rank's part of the sequence is two that do not meet: those of the last rank do.
    pub(crate) fn has_a_gap(self) -> bool {
        self.is_balanced && self.group.rank + 1 < self.group.ranks
    }

    fn part(self, step: u32) -> Part {
        match (step, self.is_balanced) {
            (0, _) => Part::All,
            _ if step <= self.group.rank && self.is_balanced => Part::FirstHalfOfKeys,
            _ if step <= self.group.rank => Part::All,
            (_, true) => Part::SecondHalfOfQueries,
            (_, false) => Part::Nothing,
        }
    }
}

/// The dimension of the sequence in `[b, h, s, d]`.
const SEQUENCE: isize = 2;

/// A half of what is cut in two by sequence.
fn half(t: &Tensor) -> Tensor {
    t.alias(t.layout().narrow(SEQUENCE, t.size(SEQUENCE) / 2))
}

/// Keys and values as they are sent, and those of other ranks.
pub(crate) const AROUND: &str = "keys and values of other ranks";
/// The gradients of keys and values, which go round to the rank that they are of.
pub(crate) const GRADIENTS_AROUND: &str = "their gradients on the way back";

/// Two tensors that were joined, as they lie in it.
fn apart(joined: &Tensor, [a, b]: [&Tensor; 2]) -> [Tensor; 2] {
    [a, b].map(|t| joined.alias(t.layout().packed()))
}

/// Who brings the next rank's tensor (`_AllGatherRotater`, `_AllToAllRotater`).
struct Rotater {
    method: RotateMethod,
    group: Group,
    name: &'static str,
    held: Option<Tensor>,
}

impl Rotater {
    fn new(method: RotateMethod, ring: Ring, name: &'static str) -> Rotater {
        Rotater { method, group: ring.group, name, held: None }
    }

    /// `torch.cat([a.flatten(), b.flatten()])`.
    fn joined(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let [a, b] = [a, b].map(contiguous); // what `flatten` copies
        let numbers = a.layout().numel().saturating_add(b.layout().numel());
        let joined = like("cat", &a, Layout::contiguous(&[numbers]));
        a.torch().reads(&[&b]);
        joined.rename(Category::CommunicationBuffer, self.name);
        joined
    }

    fn exchange(&mut self, tensor: &Tensor) {
        let torch = tensor.torch();
        let received = match self.method {
            RotateMethod::AllGather if self.held.is_some() => return,
            RotateMethod::AllGather => {
                let numbers = tensor.layout().numel().saturating_mul(u64::from(self.group.ranks));
                let all =
                    like("_c10d_functional.all_gather_into_tensor", tensor, Layout::contiguous(&[numbers]));
                torch.communicates(Collective::AllGather, all.bytes(), self.group.peers());
                all
            }
            RotateMethod::AllToAll => {
                let next = like("_c10d_functional.all_to_all_single", tensor, tensor.layout().clone());
                torch.communicates(Collective::Send, tensor.bytes(), self.group.peers());
                next
            }
        };
        received.rename(Category::CommunicationBuffer, self.name);
        self.held = Some(received);
    }

    /// What has come, two tensors like these.
    fn next(&self, [a, b]: [&Tensor; 2]) -> [Tensor; 2] {
        match &self.held {
            Some(held) => apart(held, [a, b]),
            None => unreachable!("what was sent has come"),
        }
    }
}

/// What was sent, which NCCL holds until what comes is waited for though no name does (`stashed_for_allocator_safety_`,
/// `torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp`): there on the device, and unseen by a tracker.
fn in_flight(sent: Tensor) -> Tensor {
    let (torch, layout, dtype) = (sent.torch().clone(), sent.layout().clone(), sent.dtype());
    drop(sent);
    let role = Role::Named { name: AROUND };
    let held = torch.place(layout, dtype, (Category::CommunicationBuffer, None), torch.module.get(), role);
    held.relabel(|stored| stored.tracked = NEVER);
    held
}

/// Attended states and log-sums of all steps so far (`_SDPAMerger`), in fp32.
#[derive(Default)]
struct Merger {
    merged: Option<[Tensor; 2]>,
}

impl Merger {
    fn step(&mut self, attended: &Tensor, log_sums: &Tensor, is_partial: bool) {
        let block = to(attended, Dtype::F32);
        let block_sums = log_sums.alias(log_sums.layout().unsqueeze(3));
        let Some([merged, sums]) = self.merged.take() else {
            self.merged = Some([block, block_sums]);
            return;
        };
        let of = |t: &Tensor| if is_partial { half(t) } else { t.clone() };
        let (mut out, mut sum) = (of(&merged), of(&sums));
        let weight = {
            let difference = sub(&block_sums, &sum);
            sigmoid(&difference)
        };
        let correction = multiplied(weight, sub(&out, &block));
        out = sub(&out, correction);
        let logarithm = {
            let difference = sub(&sum, &block_sums);
            like("log_sigmoid_forward", &difference, difference.layout().preserved())
        };
        sum = sub(&sum, logarithm);
        self.merged = Some(match is_partial {
            false => [out, sum],
            true => {
                let all_sums = partly_updated(&sums);
                drop(sums);
                [partly_updated(&merged), all_sums]
            }
        });
    }
}

/// `a * b`, after which both go.
fn multiplied(a: Tensor, b: Tensor) -> Tensor {
    mul(&a, &b)
}

/// `_partial_update`: a half replaced, in a new tensor.
fn partly_updated(whole: &Tensor) -> Tensor {
    like("cat", whole, whole.layout().packed())
}

/// The same where a half is added to first.
fn partly_added(whole: &Tensor) -> Tensor {
    whole.torch().launch("add_.Tensor");
    partly_updated(whole)
}

/// Causal attention of `[b, h, s / ranks, d]` by that kernel.
pub(super) fn ring_attention(inputs: [&Tensor; 3], kernel: &'static Fused, ring: Ring) -> Tensor {
    let torch = inputs[0].torch();
    let saved = recorded(torch, &inputs).then(|| inputs.map(Tensor::save));
    let run = || torch.without_grad(|| forward(inputs, kernel, ring));
    let [attended, log_sums, seed, offset] = torch.selected(run);
    let Some(saved) = saved else { return attended };
    let outputs = [attended.save(), log_sums.save()];
    let seeds = [seed, offset].map(|seed| seed.save());
    record(attended, &inputs, move |grad| {
        let [q, k, v] = saved.each_ref().map(|s| s.unpack());
        let [attended, log_sums] = outputs.each_ref().map(|s| s.unpack());
        let _seeds = seeds.each_ref().map(|s| s.unpack());
        let inputs = [&q, &k, &v];
        grad.torch().without_grad(|| backward(grad, inputs, [&attended, &log_sums], kernel, ring))
    })
}

fn forward([q, k, v]: [&Tensor; 3], kernel: &Fused, ring: Ring) -> [Tensor; 4] {
    let (mut key, mut value) = (contiguous(k), contiguous(v));
    let (mut merger, mut rotater) = (Merger::default(), Rotater::new(ring.rotate, ring, AROUND));
    let (mut section, mut block, mut seeds, mut _sent) = (None, None, None, None);
    for step in 0..ring.group.ranks {
        if step > 0 {
            _sent = None;
            [key, value] = rotater.next([&key, &value]);
        }
        if step + 1 < ring.group.ranks {
            let kv = rotater.joined(&key, &value);
            rotater.exchange(&kv);
            _sent = Some(in_flight(kv));
        }
        let part = ring.part(step);
        let [q, k, v] = match part {
            Part::All => [q.clone(), key.clone(), value.clone()],
            Part::FirstHalfOfKeys => [q.clone(), half(&key), half(&value)],
            Part::SecondHalfOfQueries => [half(q), key.clone(), value.clone()],
            Part::Nothing => continue,
        };
        let [q, k, v] = section.insert([q, k, v]);
        let [attended, log_sums, seed, offset] = block.insert(kernel.run([q, k, v], None));
        seeds.get_or_insert_with(|| (seed.clone(), offset.clone())); // those of the first are handed on
        merger.step(attended, log_sums, part == Part::SecondHalfOfQueries);
    }
    match (merger.merged, seeds) {
        (Some([out, sums]), Some((seed, offset))) => {
            let out = to(&out, q.dtype());
            let flat: [u64; 3] = [0, 1, 2].map(|dim| sums.size(dim));
            [out, sums.alias(Layout::contiguous(&flat)), seed, offset]
        }
        _ => unreachable!("a rank attends to its own keys"),
    }
}

fn backward(
    grad: &Tensor,
    [q, k, v]: [&Tensor; 3],
    [out, log_sums]: [&Tensor; 2],
    kernel: &Fused,
    ring: Ring,
) -> Grads {
    let torch = grad.torch();
    let zeros_like = |t: &Tensor| {
        torch.launch("zeros_like");
        torch.empty(t.layout().preserved(), Dtype::F32)
    };
    let (mut for_query, mut for_key, mut for_value) = (zeros_like(q), zeros_like(k), zeros_like(v));
    let (mut key, mut value) = (contiguous(k), contiguous(v));
    let mut round = Rotater::new(ring.rotate, ring, AROUND);
    let mut gradients_round = Rotater::new(RotateMethod::AllToAll, ring, GRADIENTS_AROUND);
    let (mut _sent, mut _gradients_sent, mut section) = (None, None, None);
    let (mut own_query, mut own_key, mut own_value);
    for step in 0..ring.group.ranks {
        if step > 0 {
            [key, value] = round.next([&key, &value]);
        }
        if step + 1 < ring.group.ranks {
            let kv = round.joined(&key, &value);
            round.exchange(&kv);
            _sent = Some(kv);
        }
        let part = ring.part(step);
        let all = [q, &key, &value, out, grad, log_sums];
        let of_part = match part {
            Part::All => Some(all.map(Tensor::clone)),
            Part::FirstHalfOfKeys => {
                let [q, k, v, out, grad, sums] = all;
                Some([q.clone(), half(k), half(v), out.clone(), grad.clone(), sums.clone()])
            }
            Part::SecondHalfOfQueries => {
                let [q, k, v, out, grad, sums] = all;
                Some([half(q), k.clone(), v.clone(), half(out), half(grad), contiguous(half(sums))])
            }
            Part::Nothing => None,
        };
        match of_part {
            Some(of_part) => {
                let [q, k, v, out, grad, sums] = section.insert(of_part);
                let layouts = kernel.grads_like([q, k, v]);
                [own_query, own_key, own_value] =
                    kernel.run_backward(grad, [q, k, v], [out, sums], None, &layouts);
            }
            None => {
                own_query = zeros_like(q);
                own_key = zeros_like(&key);
                own_value = zeros_like(&value);
            }
        }
        let add = |sum: &Tensor, term: &Tensor| {
            torch.launch("add_.Tensor");
            torch.reads(&[sum, sum, term]);
        };
        if step > 0 {
            _gradients_sent = None;
            [for_key, for_value] = gradients_round.next([&for_key, &for_value]);
        }
        if part == Part::FirstHalfOfKeys {
            for_key = partly_added(&for_key);
            for_value = partly_added(&for_value);
        } else {
            add(&for_key, &own_key);
            add(&for_value, &own_value);
        }
        let both = gradients_round.joined(&for_key, &for_value);
        gradients_round.exchange(&both);
        _gradients_sent = Some(both);
        if part == Part::SecondHalfOfQueries {
            for_query = partly_added(&for_query);
        } else {
            add(&for_query, &own_query);
        }
    }
    for_query = to(&for_query, q.dtype());
    let Some(arrived) = &gradients_round.held else { unreachable!("what was sent has come") };
    let arrived = to(arrived, k.dtype());
    let [for_key, for_value] = apart(&arrived, [k, v]);
    smallvec![Some(for_query), Some(for_key), Some(for_value)]
}

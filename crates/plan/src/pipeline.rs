//! A stage of a pipeline runs its micro-batches in the order of its schedule: hidden states come from the stage before and
//! go to the next, gradients come back, and the micro-batches whose backward is still to come are in flight.
//!
//! Who holds what for how long is that of `torch/distributed/pipelining` (2.15: `stage.py`, `schedules.py`), which Megatron-LM's
//! `core/pipeline_parallel/schedules.py` does much alike (where not, `parallel/megatron/names.rs`): a buffer is made for what is
//! received when it is asked for; hidden states that are received stay for backward, as the first layer saves them; those that
//! are sent go when they have arrived, the node of the graph stays in their place (`release_fwd_send_outputs`;
//! `deallocate_output_tensor`); a gradient that was sent stays in its name until the next one is bound to it.

use crate::model::{Batch, Model};
use crate::options::Options;
use crate::parallel::megatron::Names;
use crate::parallel::resident::{Turn, turns};
use crate::parallel::schedule::{Action, Pass, runs};
use crate::parallel::stage::Part;
use crate::parallel::{Schedule, Sharding, Stack};
use crate::step::{Graph, Loop, load_part, place_input};
use crate::torch::autograd::{Edge, Leaf, backward, backward_from};
use crate::torch::deferred::Deferred;
use crate::torch::network::{Collective, Peers};
use crate::torch::{Dtype, Layout, ModuleId, Tensor, Torch};
use peakledger_core::{Category, Phase};
use std::collections::BTreeMap;
use std::rc::Rc;

const OUTPUT_GRAD: &str = "output gradient received";

/// What a stage holds of the model and does in a step.
pub(crate) struct Pipeline {
    parts: Vec<(Part, Box<dyn Model>)>,
    actions: Vec<Action>,
    /// Where the last backward of each part is.
    ends: Vec<usize>,
    /// Which parts are brought and taken away before each, where FSDP2 shares out a stage of several.
    turns: Vec<Turn>,
    /// By micro-batch; empty where each is loaded when its turn comes (Megatron).
    inputs: Vec<Inputs>,
    /// The hidden states of a micro-batch between two stages, `[b, s, h]`; `[s, b, h]` with Megatron.
    between: (Layout, Dtype),
    /// The stages before and after this one, round from the last to the first, as they are reached.
    neighbours: [Peers; 2],
    /// Whether the second part of a stage is run from the last stage to the first.
    both_ways: bool,
    /// Whether what was sent stays until its backward (`_output_slot_is_releasable`: DDP's reducer asks for it).
    holds_outputs: bool,
}

impl Pipeline {
    /// A stage with its parts, what it does in order, and what it needs of all micro-batches on the device.
    pub(crate) fn new(
        torch: &Rc<Torch>,
        options: &Options,
        (seq_len, actions): (u64, Vec<Action>),
        parts: Vec<(Part, Box<dyn Model>)>,
        between: (Layout, Dtype),
    ) -> Pipeline {
        let (parallel, micro_batches) = (&options.parallel, options.gradient_accumulation_steps);
        let Ok(mesh) = options.mesh() else { unreachable!("a world that was checked") };
        let stage = mesh.place(parallel.rank).pp;
        let neighbours =
            [stage + mesh.pp - 1, stage + 1].map(|other| mesh.stage_peers(stage, other % mesh.pp));
        let loaded = if options.stack == Stack::Megatron { 0 } else { micro_batches };
        let inputs = (0..loaded).map(|micro_batch| {
            let numbered = (0u32..).zip(&parts);
            let run = numbered.filter(|(at, _)| runs(parallel, *at, micro_batch, micro_batches));
            let run = run.map(|(_, (part, _))| part);
            Inputs::load(torch, options, seq_len, micro_batch, run)
        });
        let inputs = inputs.collect();
        let backwards = (0..).zip(&actions).filter(|(_, action)| action.pass.makes_weight_grads());
        let last_of: BTreeMap<u32, usize> = backwards.map(|(at, action)| (action.part, at)).collect();
        let ends = last_of.into_values().collect();
        let both_ways = parallel.schedule == Schedule::DualPipe;
        let by_schedule = parts.len() > 1 && options.stack == Stack::Transformers;
        let by_schedule = by_schedule && parallel.sharding.is_fsdp();
        let turns = if by_schedule { turns(&actions) } else { Vec::new() };
        let is_ddp = parallel.sharding == Sharding::Replicated && mesh.replicas() > 1;
        let holds_outputs = is_ddp && options.stack == Stack::Transformers;
        Pipeline { actions, ends, turns, inputs, between, parts, neighbours, both_ways, holds_outputs }
    }

    /// Whether that is the last backward of its part (`last_backward`).
    fn is_last_of_part(&self, index: usize) -> bool {
        self.ends.contains(&index)
    }

    /// The stage that a part's hidden states go to, and that its gradients go to.
    fn forward_and_back(&self, part: u32) -> [Peers; 2] {
        let [before, after] = self.neighbours;
        if self.both_ways && part == 1 { [before, after] } else { [after, before] }
    }
}

/// What a stage is given of a micro-batch beside hidden states.
struct Inputs {
    input_ids: Option<Tensor>,
    attention_mask: Option<Tensor>,
    position_ids: Option<Tensor>,
    labels: Option<Tensor>,
}

impl Inputs {
    /// Places what the parts of a stage need: token ids where the embedding is, labels where the head is, the mask everywhere.
    fn load<'a>(
        torch: &Rc<Torch>,
        options: &Options,
        seq_len: u64,
        micro_batch: u32,
        mut parts: impl Iterator<Item = &'a Part> + Clone,
    ) -> Inputs {
        let input = |name| place_input(torch, options, seq_len, (name, micro_batch));
        let attention_mask = options.padded.then(|| input("attention_mask"));
        Inputs {
            input_ids: parts.clone().any(|part| part.embeds).then(|| input("input_ids")),
            attention_mask,
            position_ids: options.parallel.sp.then(|| input("position_ids")),
            labels: parts.any(|part| part.ends).then(|| input("labels")),
        }
    }
}

/// A micro-batch whose backward is still to come.
struct InFlight {
    root: Root,
    received: Option<Rc<Received>>,
    /// Where the schedule holds it.
    _batch: Option<Batch>,
    _graph: Graph,
}

/// Where its backward begins.
enum Root {
    /// The loss, and the logits, where the stage keeps them until then.
    Loss(Tensor, Option<Tensor>),
    /// The node that put out what was sent, and what is left of that, where something is.
    Sent(Edge, Option<Tensor>),
}

/// Hidden states of the stage before.
pub(crate) struct Received {
    leaf: Rc<Leaf>,
    hidden_states: Tensor,
}

/// What is kept between the actions of a step.
#[derive(Default)]
struct Kept {
    in_flight: BTreeMap<(u32, u32), InFlight>,
    /// Weights whose gradients wait, by micro-batch and part.
    waiting: BTreeMap<(u32, u32), Vec<Deferred>>,
    /// Hidden states that may not have arrived yet.
    sent: Vec<Tensor>,
    /// Gradients that were sent.
    sent_back: Vec<Tensor>,
    /// Of the last stage; the schedule keeps them until the step ends (`_internal_losses`; `forward_data_store`).
    losses: Vec<Tensor>,
    /// What Megatron's schedule keeps beside that.
    names: Option<Names>,
}

impl Kept {
    /// A backward begins: torch's schedules have waited for what was sent.
    fn sent_has_arrived(&mut self) {
        if self.names.is_none() {
            self.sent.clear();
        }
    }

    /// All backwards of a part have run, and what they sent has arrived but for the last, which a name still holds.
    fn all_is_sent(&mut self) {
        self.sent_back.drain(..self.sent_back.len().saturating_sub(1));
    }
}

impl Loop<'_> {
    /// Runs all micro-batches of a stage, and hands back what the model itself still holds.
    pub(crate) fn run_stage(&self, pipeline: &Pipeline) -> Option<Names> {
        let torch = &self.torch;
        let hooks = torch.module_hooks.borrow().clone();
        let is_megatron = self.options.stack == Stack::Megatron;
        let names = is_megatron.then(|| Names::new(self.options.parallel.schedule));
        let mut kept = Kept { names, ..Kept::default() };
        let last = pipeline.actions.len().saturating_sub(1);
        for (at, action) in pipeline.actions.iter().enumerate() {
            let Action { pass, micro_batch, part } = *action;
            let which = (micro_batch, part);
            if pass == Pass::Forward {
                self.forward(pipeline, at, &mut kept);
                continue;
            }
            torch.begin_as(phase(pass, part), Some(micro_batch), &Phase::Backward);
            self.comes_to_part(pipeline, at);
            // the last backward is the last action: what data parallel ranks sum is complete then
            hooks.iter().for_each(|hooks| hooks.begin(at == last));
            match pass {
                Pass::WeightGrad => {
                    let waiting = kept.waiting.remove(&which).unwrap_or_default();
                    torch.catch_up(waiting);
                }
                Pass::InputGrad => {
                    torch.defer();
                    self.backward_of(pipeline, which, &mut kept);
                    kept.waiting.insert(which, torch.deferred());
                }
                _ => self.backward_of(pipeline, which, &mut kept),
            }
            self.ask_ahead(pipeline, at, &mut kept);
            let cools_down = pipeline.actions.get(at + 1).is_none_or(|next| next.pass != Pass::Forward);
            if is_megatron && cools_down {
                kept.sent.clear();
            }
            if pipeline.is_last_of_part(at) {
                kept.all_is_sent();
                hooks.iter().for_each(|hooks| hooks.reduce_grad());
            }
            if pass.makes_weight_grads() {
                self.backward_ended(at == last);
            }
            torch.end();
        }
        kept.names.map(Names::after_the_schedule)
    }

    /// The part of an action is next; what the schedule takes away and brings before it goes and comes, and what the action runs
    /// has come (`_assert_unsharded`).
    fn comes_to_part(&self, pipeline: &Pipeline, index: usize) {
        let Some(hooks) = self.torch.module_hooks.borrow().clone() else { return };
        let Some(Action { part, .. }) = pipeline.actions.get(index) else { return };
        let turn = pipeline.turns.get(index);
        for part in turn.iter().flat_map(|turn| &turn.reshards) {
            hooks.part(*part, false);
            hooks.reshard();
        }
        for part in turn.iter().flat_map(|turn| &turn.unshards) {
            hooks.part(*part, false);
            hooks.unshard();
        }
        hooks.part(*part, pipeline.is_last_of_part(index));
        if turn.is_some() {
            hooks.wait_for_unshard();
        }
    }

    fn forward(&self, pipeline: &Pipeline, index: usize, kept: &mut Kept) {
        let torch = &self.torch;
        let Some(Action { micro_batch, part, .. }) = pipeline.actions.get(index).copied() else { return };
        let Some((at, model)) = pipeline.parts.get(part as usize) else { return };
        torch.begin_as(phase(Pass::Forward, part), Some(micro_batch), &Phase::Forward);
        self.comes_to_part(pipeline, index);
        if kept.names.is_some() {
            kept.sent.clear(); // Megatron waits for it before the next forward
        }
        let received = (!at.embeds).then(|| self.receive(pipeline, part, kept));
        let input = received.as_ref().map(|received| {
            let edge = Edge::leaf(received.leaf.clone(), ModuleId(0));
            received.hidden_states.detach().with_edge(Some(edge))
        });
        let Some(batch) = self.batch(pipeline, at, micro_batch, input) else { return };
        // autocast is entered for each forward pass, and its copies of the weights go with it
        let hooks = torch.module_hooks.borrow().clone();
        let leave = |output: Tensor| match &hooks {
            Some(hooks) => hooks.clone().leave(output),
            None => output,
        };
        let (root, graph) = torch.autocast(self.options.autocast(), || {
            hooks.iter().for_each(|hooks| hooks.enter());
            let hidden_states = model.decode(&batch);
            let logits = self.logits(&**model, &hidden_states).map(leave);
            let graph = Graph::take(torch);
            let Some(logits) = logits else { return (Err(leave(hidden_states)), graph) };
            drop(hidden_states);
            torch.end();
            torch.begin(Phase::Loss, Some(micro_batch));
            // the gradients are divided when all backwards are done (`scale_grads`), not the loss
            let logits = Some(logits);
            let loss = self.scaled(self.loss(&**model, (&logits, &None), &batch, 1));
            (Ok((loss, logits.filter(|_| kept.names.is_none()))), graph)
        });
        let root = match root {
            Ok((loss, logits)) => {
                kept.losses.push(loss.clone());
                Some(Root::Loss(loss, logits))
            }
            Err(output) => {
                let [next, _] = pipeline.forward_and_back(part);
                torch.communicates(Collective::Send, output.bytes(), next);
                let left = match kept.names {
                    Some(_) => Some(self.left_of_sent(&output)),
                    None => pipeline.holds_outputs.then(|| output.detach()),
                };
                if self.options.parallel.schedule != Schedule::Gpipe {
                    kept.sent.clear(); // what was sent before has arrived; GPipe waits when all forwards are done
                }
                if kept.names.as_ref().is_none_or(|names| names.holds_sent(&pipeline.actions, index)) {
                    kept.sent.push(output.detach());
                }
                output.edge().cloned().map(|edge| Root::Sent(edge, left))
            }
        };
        let batch = Some(batch).filter(|_| kept.names.is_none());
        self.ask_ahead(pipeline, index, kept);
        torch.end();
        if let Some(root) = root {
            let in_flight = InFlight { root, received, _batch: batch, _graph: graph };
            kept.in_flight.insert((micro_batch, part), in_flight);
        }
    }

    /// What a part is given of a micro-batch, beside hidden states or with them.
    fn batch(
        &self,
        pipeline: &Pipeline,
        at: &Part,
        micro_batch: u32,
        hidden_states: Option<Tensor>,
    ) -> Option<Batch> {
        if self.options.stack == Stack::Megatron {
            // both ends load all of it, what lies between nothing (`get_batch`)
            let load = || load_part(&self.torch, self.options, self.seq_len, micro_batch);
            let loaded = (at.embeds || at.ends).then(load);
            return match (loaded, hidden_states) {
                (Some(batch), None) => Some(batch),
                (Some(batch), Some(input)) => Some(Batch { input, ..batch }),
                (None, input) => input.map(Batch::of),
            };
        }
        let inputs = pipeline.inputs.get(micro_batch as usize)?;
        let input = hidden_states.or_else(|| inputs.input_ids.clone())?;
        let labels = inputs.labels.clone().filter(|_| at.ends);
        let (attention_mask, position_ids) = (inputs.attention_mask.clone(), inputs.position_ids.clone());
        Some(Batch { attention_mask, position_ids, labels, ..Batch::of(input) })
    }

    /// `deallocate_output_tensor`: one number in the place of what was sent.
    fn left_of_sent(&self, output: &Tensor) -> Tensor {
        self.torch.launch("empty");
        self.torch.empty(Layout::contiguous(&[1]), output.dtype())
    }

    /// The backward pass of a micro-batch in flight.
    fn backward_of(&self, pipeline: &Pipeline, which: (u32, u32), kept: &mut Kept) {
        let torch = &self.torch;
        let Some(in_flight) = kept.in_flight.remove(&which) else { return };
        let InFlight { root, received, .. } = &in_flight;
        match root {
            Root::Loss(loss, _logits) => {
                kept.sent_has_arrived();
                backward(loss);
            }
            Root::Sent(edge, _left) => {
                let grad = self.output_grad(pipeline, kept);
                kept.sent_has_arrived();
                backward_from(edge, &grad);
            }
        }
        let grad = received.as_ref().and_then(|received| match kept.names {
            None => received.leaf.grad.borrow_mut().take(),
            Some(_) => received.leaf.grad.borrow().clone(), // `retain_grad`
        });
        if let Some(names) = &mut kept.names {
            names.backward_ended(received.clone());
        }
        let Some(grad) = grad else { return };
        let [_, previous] = pipeline.forward_and_back(which.1);
        torch.communicates(Collective::Send, grad.bytes(), previous);
        grad.rename(Category::CommunicationBuffer, "input gradient sent");
        if self.options.parallel.schedule != Schedule::Gpipe {
            kept.sent_back.clear(); // GPipe waits when all backwards are done
        }
        kept.sent_back.push(grad);
    }

    /// The hidden states that a part is given, and who holds them from then on.
    fn receive(&self, pipeline: &Pipeline, part: u32, kept: &mut Kept) -> Rc<Received> {
        let asked = kept.names.as_mut().and_then(Names::asked_input);
        let received = asked.unwrap_or_else(|| self.hidden_states(pipeline));
        if let Some(names) = &mut kept.names {
            names.received(part, &received);
        }
        received
    }

    /// The gradient of what a part put out.
    fn output_grad(&self, pipeline: &Pipeline, kept: &mut Kept) -> Tensor {
        let asked = kept.names.as_mut().and_then(Names::asked_grad);
        let grad = asked.unwrap_or_else(|| self.buffer(pipeline, OUTPUT_GRAD));
        if let Some(names) = &mut kept.names {
            names.received_grad(&grad);
        }
        grad
    }

    /// Asks for what is needed next, where the schedule does so before it is (Megatron's interleaved stages).
    fn ask_ahead(&self, pipeline: &Pipeline, index: usize, kept: &mut Kept) {
        let Some(names) = &mut kept.names else { return };
        let part = |action: &Action| pipeline.parts.get(action.part as usize).map(|(part, _)| part);
        let asks = names.asks_ahead(&pipeline.actions, index);
        if asks.input.as_ref().and_then(part).is_some_and(|part| !part.embeds) {
            names.ask_input(self.hidden_states(pipeline));
        }
        if asks.grad.as_ref().and_then(part).is_some_and(|part| !part.ends) {
            names.ask_grad(self.buffer(pipeline, OUTPUT_GRAD));
        }
    }

    fn hidden_states(&self, pipeline: &Pipeline) -> Rc<Received> {
        let hidden_states = self.buffer(pipeline, "hidden states received");
        Rc::new(Received { leaf: Leaf::new(None, false), hidden_states })
    }

    /// A buffer for what another stage sends.
    fn buffer(&self, pipeline: &Pipeline, name: &'static str) -> Tensor {
        let (layout, dtype) = &pipeline.between;
        self.torch.launch("recv");
        let buffer = self.torch.empty(layout.clone(), *dtype);
        buffer.rename(Category::CommunicationBuffer, name);
        buffer
    }
}

/// The phase of an action: those of later parts have the part in their name.
fn phase(pass: Pass, part: u32) -> Phase {
    let name = match pass {
        Pass::Forward => "forward",
        Pass::Backward | Pass::InputGrad => "backward",
        Pass::WeightGrad => "weight_grad",
    };
    match part {
        0 => Phase::named(name),
        part => Phase::named(&format!("{name}_part_{part}")),
    }
}

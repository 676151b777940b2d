//! What waits on the host, and what an optimizer steps in the parameters' place: cases that a person can work out from the
//! sizes of a small model.

use peakledger_core::{Category, Device, Phase, State};
use peakledger_input::Source;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::*;
use peakledger_plan::{Costs, Dtype, Plan, PlannedPhase, Step, plan};

const LAYERS: u64 = 4;
const HIDDEN: u64 = 256;
const VOCABULARY: u64 = 1024;
/// Four square projections, three of the MLP and two norms.
const OF_A_LAYER: u64 = 4 * HIDDEN * HIDDEN + 3 * 512 * HIDDEN + 2 * HIDDEN;
/// The embedding, the head and the last norm.
const OF_THE_ROOT: u64 = 2 * VOCABULARY * HIDDEN + HIDDEN;

fn planned(options: Options) -> Plan {
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": {HIDDEN}, "intermediate_size": 512, "num_hidden_layers": {LAYERS},
            "num_attention_heads": 8, "vocab_size": {VOCABULARY}, "tie_word_embeddings": false}}"#
    );
    let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
    let plan =
        plan(architecture, Options { seq_len: Some(128), precision: Precision::Bf16, ..options }).unwrap();
    assert_eq!(plan.parameters, LAYERS * OF_A_LAYER + OF_THE_ROOT);
    plan
}

fn phase(plan: &Plan, phase: Phase) -> &PlannedPhase {
    plan.steady.phases.iter().find(|planned| planned.phase == phase).unwrap()
}

/// Bytes to the host and back in a step.
fn over_the_link(plan: &Plan) -> (u64, u64) {
    let host = plan.steady.phases.iter().map(|phase| phase.costs).sum::<Costs>().host;
    (host.to_host.try_into().unwrap(), host.from_host.try_into().unwrap())
}

fn activations(prefetch: u32) -> Options {
    let offload = Offload { activations: true, ..Offload::default() };
    Options { offload, offload_prefetch: prefetch, ..Options::default() }
}

#[test]
fn so_many_layers_of_activations_stay_as_are_ahead() {
    let end = |options| phase(&planned(options), Phase::Forward).end.get();
    let [none, one, two] = [0, 1, 2].map(|ahead| end(activations(ahead)));
    let of_a_layer = two - one;
    assert_eq!(
        one - none,
        of_a_layer + 2 * 128 * 32 * 2,
        "with the first come the rotary tables, which all layers save"
    );
    for ahead in 3..=6 {
        let more = u64::from(ahead).min(LAYERS) - 1;
        assert_eq!(end(activations(ahead)), one + more * of_a_layer, "{ahead} layers ahead");
    }
    assert_eq!(end(activations(4)), end(Options::default()));
}

#[test]
fn what_is_offloaded_is_on_the_device_then_on_the_host_then_on_the_device() {
    for ahead in 0..3 {
        let plan = planned(activations(ahead));
        let ledger = plan.ledger(Step::Steady).unwrap();
        let on_host =
            |state: &&State| state.residencies.as_slice().iter().any(|stay| stay.device == Device::Cpu);
        let mut copied = 0;
        for state in ledger.states().iter().filter(on_host) {
            copied += state.bytes.get();
            let mut stays = state.residencies.as_slice().to_vec();
            stays.sort_by_key(|stay| stay.start);
            let devices: Vec<Device> = stays.iter().map(|stay| stay.device).collect();
            match devices[..] {
                // still there when its turn comes
                [Device::Gpu, Device::Cpu] => assert!(ahead > 0, "{}", state.name),
                // it comes back, once for each view of it that is saved and each layer that saves it
                [Device::Gpu, Device::Cpu, ref back @ ..] => assert!(!back.contains(&Device::Cpu)),
                // another view
                _ => assert_eq!(devices, [Device::Cpu], "{}", state.name),
            }
        }
        assert_eq!(
            phase(&plan, Phase::Loss).host_peak.get(),
            copied,
            "all of it waits while the loss is computed"
        );
        let (to_host, from_host) = over_the_link(&plan);
        assert_eq!(to_host, copied, "every tensor here is whole blocks");
        assert!(from_host <= copied);
    }
}

#[test]
fn parameters_come_a_layer_at_a_time() {
    for ahead in 0..3 {
        let offload = Offload { parameters: true, ..Offload::default() };
        let plan = planned(Options { offload, offload_prefetch: ahead, ..Options::default() });
        let parameters = |of| phase(&plan, of).by_category.get(Category::Parameter).get();
        let buffers = parameters(Phase::Load);
        assert!(buffers < 4096, "rotary tables");
        let most = 2 * (OF_THE_ROOT + OF_A_LAYER * u64::from(1 + ahead)) + buffers;
        for of in [Phase::Forward, Phase::Backward] {
            assert!(parameters(of.clone()) <= most, "{of}");
        }
        assert_eq!(parameters(Phase::Loss), 2 * OF_THE_ROOT + buffers);
        assert_eq!(parameters(Phase::Update), buffers);
        // weights, gradients and both moments; each weight twice to the device but for the root's
        assert_eq!(phase(&plan, Phase::ZeroGrad).host_peak.get(), 2 * 4 * plan.parameters);
        let gradients = 2 * plan.parameters;
        assert_eq!(over_the_link(&plan), (gradients, 2 * (2 * LAYERS * OF_A_LAYER + OF_THE_ROOT)));
    }
}

#[test]
fn an_optimizer_on_the_host_steps_copies() {
    let offload = Offload { optimizer: true, ..Offload::default() };
    let plan = planned(Options { offload, ..Options::default() });
    let norms = HIDDEN * (2 * LAYERS + 1); // below 4096 numbers each: they stay
    let there = plan.parameters - norms;
    assert_eq!(
        phase(&plan, Phase::Load).host_peak.get() / 2,
        4 * there + steps(&plan),
        "copy, gradient, two moments"
    );
    assert_eq!(phase(&plan, Phase::Load).by_category.get(Category::OptimizerState).get(), 2 * 2 * norms);
    assert_eq!(over_the_link(&plan), (2 * there, 2 * there));
}

/// The step counts of the fused AdamW: a block each, in bf16 numbers.
fn steps(plan: &Plan) -> u64 {
    let ledger = plan.ledger(Step::Steady).unwrap();
    let steps = ledger.states().iter().filter(|state| state.name.ends_with(".step"));
    steps.map(|state| state.bytes.get() / 2).sum()
}

#[test]
fn masters_are_stepped_in_their_type() {
    let options = Options { master_weights: Some(Dtype::F32), ..Options::default() };
    let plan = planned(options.clone());
    let update = |category| phase(&plan, Phase::Update).by_category.get(category).get();
    let numbers = plan.parameters;
    assert_eq!(update(Category::Parameter) / 2, numbers + 512, "and two rotary tables of a block each");
    assert_eq!(update(Category::MasterWeight), 4 * numbers);
    assert_eq!(update(Category::Gradient), 4 * numbers, "the model's own went one by one");
    assert_eq!(update(Category::OptimizerState), 8 * numbers);
    assert_eq!(update(Category::Workspace), 4 * numbers, "the square root of the foreach step");

    let summed = planned(Options { grad_dtype: Some(Dtype::F32), ..options });
    for of in [Phase::Load, Phase::Forward, Phase::Update, Phase::ZeroGrad] {
        let gradients = phase(&summed, of.clone()).by_category.get(Category::Gradient).get();
        assert_eq!(gradients, 4 * numbers, "{of}: the buffer is always there");
    }
}

#[test]
fn a_weight_is_whole_while_it_is_packed() {
    let lora = Lora::default();
    let options = Options { lora: Some(lora), quantize: Some(Quantize::Nf4), ..Options::default() };
    let config = r#"{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 65536, "num_hidden_layers": 1,
        "num_attention_heads": 8, "vocab_size": 1024, "tie_word_embeddings": true}"#;
    let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
    let plan = plan(architecture, Options { precision: Precision::Bf16, ..options }).unwrap();
    let load = &plan.first.phases[0];
    // the last of the three wide matrices, beside all that is packed but the adapters, norms and rotary tables after it
    let whole = 2 * 1024 * 65536;
    assert_eq!(load.by_category.get(Category::Workspace).get(), whole);
    let after = 4 * 8 * (1024 + 65536) + 3 * 2 * 1024 + 2 * 512;
    assert_eq!(load.peak.get(), load.end.get() + whole - after);
    assert_eq!(plan.steady.phases[0].peak, plan.steady.phases[0].end, "nothing is loaded in later steps");
}

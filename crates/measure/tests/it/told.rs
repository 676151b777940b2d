//! What stacks, words and ranges tell of blocks and phases.

use crate::own::*;
use crate::shared;
use crate::writer::{Py, dict};
use peakledger_core::{Category, Detail, Device};
use peakledger_input::{Binary, Input, MEASURED_LIMIT};
use peakledger_measure::snapshot::{Options, Snapshot, read};
use peakledger_measure::{MeasuredLedger, Measurement, RangeNames, Scope, ToldBy, kinds, spans};

const TORCH: &str = "/env/lib/python3.12/site-packages/torch/";

/// A stack of these frames, innermost first: `file:function` of torch, or a C++ function.
fn frames(of: &[&str]) -> Py {
    let frame = |text: &&str| match text.split_once(':') {
        Some((file, name)) if file.ends_with(".py") => frame(&format!("{TORCH}{file}"), 7, name),
        _ => frame("??", 0, text),
    };
    Py::List(of.iter().map(frame).collect())
}

const CALL: &str = "nn/modules/module.py:_call_impl";
const ENGINE: &str = "torch::autograd::Engine::evaluate_function(torch::autograd::Node*)";
const STEP: &str = "optim/adamw.py:step";

fn alloc(addr: i64, stack: Py) -> Py {
    event("alloc", BASE + addr * 512, 512, 100, stack)
}

fn free(addr: i64) -> Vec<Py> {
    ["free_requested", "free_completed"]
        .map(|action| event(action, BASE + addr * 512, 512, 100, Py::None))
        .into()
}

fn snapshot(events: Vec<Py>) -> Snapshot {
    open_value(&dict([("segments", Py::List(vec![])), ("device_traces", Py::List(vec![Py::List(events)]))]))
        .unwrap()
}

/// A step whose engine has C++ frames, or a thread without any.
fn step_of(engine: bool) -> Vec<Py> {
    let backward = |of: &[&str]| match engine {
        true => frames(&[of, &[ENGINE]].concat()),
        false => Py::List(vec![]),
    };
    let mut events = vec![
        alloc(0, frames(&["nn/modules/module.py:convert", "nn/modules/module.py:_apply"])),
        alloc(1, frames(&[CALL])), // an activation
        alloc(2, frames(&["autograd/__init__.py:_make_grads", "autograd/__init__.py:backward"])),
        alloc(3, backward(&["MmBackward0::apply"])), // comes and goes within backward
    ];
    events.extend(free(3));
    events.push(alloc(4, backward(&["AddmmBackward0::apply"]))); // a weight's gradient
    events.extend(free(1));
    events.extend(free(2));
    events.push(alloc(5, frames(&["optim/adamw.py:_init_group", STEP])));
    events.push(alloc(6, frames(&["optim/adamw.py:_multi_tensor_adamw", STEP])));
    events.extend(free(6));
    events.extend(free(4));
    events.push(alloc(7, frames(&[CALL]))); // the next step
    events.push(alloc(8, Py::List(vec![frame("/proj/train.py", 3, "main")])));
    events
}

/// What each block of a ledger is, by the place that the event has it.
fn categories(snapshot: &Snapshot) -> Vec<(Category, Option<Detail>)> {
    let measured = MeasuredLedger::of(snapshot, 0, &RangeNames::default()).unwrap();
    let mut states: Vec<_> = measured.ledger.states().iter().collect();
    states.sort_by_key(|state| state.residencies.as_slice().first().map(|stay| stay.start));
    states.iter().map(|state| (state.category, state.detail)).collect()
}

#[test]
fn stacks_tell_who_asked_and_events_what_is_left() {
    use Category::{Activation, Gradient, OptimizerState, Parameter, Workspace};
    for engine in [true, false] {
        let snapshot = snapshot(step_of(engine));
        let temporary = (Workspace, Some(Detail::Temporary));
        assert_eq!(
            categories(&snapshot),
            [
                (Parameter, None),
                (Activation, None),
                temporary, // the first gradient is gone when the optimizer begins
                temporary,
                (Gradient, None),
                (OptimizerState, None),
                temporary,
                (Activation, None),
                (Activation, None),
            ],
            "C++ frames: {engine}"
        );
        let phases = spans(&snapshot, 0, &RangeNames::default());
        let names: Vec<String> = phases.0.iter().map(|span| span.phase.to_string()).collect();
        assert_eq!(names, ["load", "forward", "backward", "update", "forward"], "C++ frames: {engine}");
        assert_eq!(phases.1, ToldBy::Stacks);
        // the last block is of no module: it counts as activation, and nothing tells it
        let measurement = Measurement::of("x", &snapshot, &Scope::default()).unwrap();
        let device = measurement.largest().unwrap();
        let told = kinds(&snapshot, 0, &device.at_peak, device.requested.event);
        assert!(told.iter().all(|kind| kind.told), "{told:?}");
        let ledger = MeasuredLedger::of(&snapshot, 0, &RangeNames::default()).unwrap();
        assert_eq!(ledger.told, [4 * 512, 4 * 512]);
    }
}

#[test]
fn the_nearest_frame_decides() {
    let checkpoint = [CALL, "utils/checkpoint.py:unpack_hook", ENGINE];
    let accumulated = ["torch::autograd::AccumulateGrad::apply", ENGINE];
    let bucket = ["c10d::Reducer::initialize_buckets()", ENGINE];
    let cublas = ["at::cuda::getNewWorkspace()", CALL];
    let snapshot = snapshot(
        [checkpoint.as_slice(), &accumulated, &bucket, &cublas]
            .iter()
            .zip(0..)
            .map(|(of, addr)| alloc(addr, frames(of)))
            .collect(),
    );
    assert_eq!(
        categories(&snapshot),
        [
            (Category::Activation, None),
            (Category::Gradient, None),
            (Category::CommunicationBuffer, None),
            (Category::Workspace, Some(Detail::Kernel)),
        ]
    );
}

/// An event with a word of the user's.
fn with_word(event: Py, word: &str) -> Py {
    let Py::Dict(mut pairs) = event else { return event };
    pairs.retain(|(key, _)| !matches!(key, Py::Str(key) if key == "user_metadata"));
    pairs.push(("user_metadata".into(), word.into()));
    Py::Dict(pairs)
}

#[test]
fn a_block_is_what_the_user_says_of_it_last() {
    let annotate =
        |addr: i64, word: &str| with_word(event("annotate", BASE + addr * 512, 512, 1, Py::None), word);
    let snapshot = snapshot(vec![
        with_word(alloc(0, Py::None), "param"),
        alloc(1, frames(&[CALL])),
        annotate(1, "gradient"),
        alloc(2, frames(&[CALL])),
        annotate(7, "param"), // no block is there
    ]);
    let told: Vec<_> = categories(&snapshot).into_iter().map(|(category, _)| category).collect();
    assert_eq!(told, [Category::Parameter, Category::Gradient, Category::Activation]);
}

#[test]
fn words_on_events_are_phases_where_no_range_is() {
    let words = ["", "forward", "", "my loss", "backward", "", "optimizer", "update", "forward"];
    let events = words.iter().zip(0..).map(|(word, addr)| with_word(alloc(addr, Py::None), word)).collect();
    let (phases, told_by) = spans(&snapshot(events), 0, &RangeNames::default());
    let phases: Vec<(String, u32)> = phases.iter().map(|span| (span.phase.to_string(), span.first)).collect();
    let phase = |name: &str, first: u32| (name.to_owned(), first);
    assert_eq!(
        phases,
        [
            phase("load", 0),
            phase("forward", 1),
            phase("loss", 3),
            phase("backward", 4), // the word that says whose a block is names no phase
            phase("update", 7),
            phase("forward", 8),
        ]
    );
    assert_eq!(told_by, ToldBy::Words);
}

/// A real step of AdamW in fp32: every weight has a gradient of its size and two states, whatever the frames say.
#[test]
fn a_real_step_holds_a_gradient_and_two_states_for_each_weight() {
    let Some(folder) = shared::snapshots() else { return };
    let path = folder.join("36_lm_train_128_full.pickle");
    let mut file = Binary::open(&Input::of(path.as_path()), MEASURED_LIMIT).unwrap();
    let snapshot = read(&mut file, Options::default(), &mut |_| {}).unwrap();
    let measured = MeasuredLedger::of(&snapshot, 0, &RangeNames::default()).unwrap();
    let peak = measured.ledger.peak();
    assert_eq!(peak.slot.phase.as_str(), "update");
    let of = |category| -> u64 {
        let there = measured.ledger.resident(Device::Gpu, peak.moment);
        there.filter(|(_, state)| state.category == category).map(|(_, state)| state.bytes.get()).sum()
    };
    let weights = of(Category::Parameter);
    let share = |category, times: u64| 100 * of(category) / (times * weights);
    assert!((99..=101).contains(&share(Category::Gradient, 1)), "{} %", share(Category::Gradient, 1));
    assert!(
        (98..=102).contains(&share(Category::OptimizerState, 2)),
        "{}",
        share(Category::OptimizerState, 2)
    );
}

/// What of the real snapshots is told, at the peak of each; a figure to be looked at.
#[test]
fn how_much_of_real_snapshots_is_told() {
    let Some(folder) = shared::snapshots() else { return };
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "pickle"));
    files.sort();
    let mut sum = [0u64; 2];
    for path in files {
        let mut file = Binary::open(&Input::of(path.as_path()), MEASURED_LIMIT).unwrap();
        let snapshot = read(&mut file, Options::default(), &mut |_| {}).unwrap();
        let measurement =
            Measurement::of(file.name(), &snapshot, &Scope { salvage: true, ..Scope::default() });
        let Some(device) = measurement.as_ref().ok().and_then(Measurement::largest) else { continue };
        let measured = MeasuredLedger::of(&snapshot, device.history.device, &RangeNames::default()).unwrap();
        let [told, all] = measured.told;
        sum = [sum[0] + told, sum[1] + all];
        let share = (100 * told).checked_div(all).unwrap_or(0);
        let phases = measured.ledger.timeline().slots().len();
        shared::say(&format!(
            "{}: {share} % of {} MiB at the peak is told; {phases} phases by {}",
            path.file_name().unwrap().to_string_lossy(),
            all >> 20,
            measured.phases_by.as_str()
        ));
    }
    shared::say(&format!("real snapshots: {} of {} MiB at the peaks are told", sum[0] >> 20, sum[1] >> 20));
    assert!(sum[0] > 0 && sum[0] <= sum[1]);
}

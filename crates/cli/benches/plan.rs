//! `cargo bench -p peakledger-cli --bench plan`: a plan in process and as a whole process, how it grows with layers,
//! micro-batches and sequence, many plans of different options on two threads, and, where torch is there, what its own op-level tracker takes for the same step.
//!
//! Set `PEAKLEDGER_TORCH_PYTHON` to a python with torch and transformers for the last part.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_precision_loss)] // a benchmark prints, and may stop

use peakledger_plan::catalogue::open_model;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{
    Attention, Lora, LoraTargets, Offload, OptimizerImpl, OptimizerKind, Options, Precision, Quantize,
    Recompute,
};
use peakledger_plan::parallel::{Parallel, Shown, classes, plan_ranks};
use peakledger_plan::{Dtype, plan};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn main() {
    let llama = open_model("llama-3.1-8b").unwrap();
    let options = Options { precision: Precision::Bf16, ..Options::default() };
    let run = |source: &peakledger_input::Source, options: &Options| {
        let planned = plan(Architecture::read(source).unwrap(), options.clone()).unwrap();
        std::hint::black_box(planned.contributors());
    };

    println!("llama-3.1-8b, config to answer");
    println!("  in process       {:>9.2?}", best(200, || run(&llama.config, &options)));
    let mixed = Options { precision: Precision::Bf16Mixed, ..options.clone() };
    println!("  the same, mixed  {:>9.2?}", best(200, || run(&llama.config, &mixed)));
    println!("  whole process    {:>9.2?}", best(20, || whole_process(&["plan", "llama-3.1-8b"])));

    let fit = ["fit", "llama-3.1-8b", "--gpu", "80GiB", "--precision", "bf16"];
    println!("  what fits        {:>9.2?}", best(10, || whole_process(&fit)));

    println!("each knob, in process, of 32 layers and of 128");
    let deep = with_layers(llama.config.text(), 128);
    for (knob, options) in knobs() {
        let [of_32, of_128] =
            [(&llama.config, 50), (&deep, 20)].map(|(config, times)| best(times, || run(config, &options)));
        println!("  {knob:<20} {of_32:>9.2?} {of_128:>9.2?}");
    }
    many(&llama.config);
    ranks();
    println!("growth");
    for layers in [8, 16, 32, 64, 128] {
        let config = with_layers(llama.config.text(), layers);
        grow("layers", layers, best(50, || run(&config, &options)));
    }
    for micro_batches in [1, 2, 4, 8, 16, 64] {
        let options = Options { gradient_accumulation_steps: micro_batches, ..options.clone() };
        grow("micro-batches", micro_batches, best(50, || run(&llama.config, &options)));
    }
    for length in [2_048, 16_384, 131_072] {
        let options = Options { seq_len: Some(u64::from(length)), ..options.clone() };
        grow("tokens", length, best(50, || run(&llama.config, &options)));
    }
    beside_the_tracker(llama.config.text());
}

/// Every rank of a world of ten thousand, of which equal ones are planned once.
fn ranks() {
    let world = Parallel { gpus: Some(10_240), tp: 8, pp: 16, ..Parallel::default() };
    let sorted = best(20, || {
        std::hint::black_box(classes(&world, 80).unwrap());
    });
    println!("a pipeline of 16 stages, llama-3.1-70b");
    println!("  10,240 ranks in classes       {sorted:>9.2?}");
    let model = open_model("llama-3.1-70b").unwrap();
    let architecture = Architecture::read(&model.config).unwrap();
    for (micro_batches, recompute) in [(16, Recompute::Full), (64, Recompute::Full), (64, Recompute::None)] {
        let options = Options {
            precision: Precision::Bf16,
            seq_len: Some(4096),
            gradient_accumulation_steps: micro_batches,
            recompute,
            parallel: Parallel { pp: 16, ..Parallel::default() },
            ..Options::default()
        };
        let planned = best(5, || {
            let look = |plan: &peakledger_plan::Plan| (plan.device_peak().phase.device_peak, ());
            std::hint::black_box(plan_ranks(&architecture, &options, Shown::Worst, look).unwrap().worst);
        });
        println!("  {micro_batches} micro-batches, {recompute:?}  {planned:>9.2?}");
    }
}

fn grow(what: &str, amount: u32, time: Duration) {
    let each = time / amount;
    println!("  {amount:>7} {what:<14} {time:>9.2?}  {each:>9.2?} each");
}

/// Torch's tracker on four layers of the model (all 32 take minutes), beside ours on the same.
fn beside_the_tracker(config: &str) {
    let Some(python) = std::env::var_os("PEAKLEDGER_TORCH_PYTHON") else {
        println!(
            "SKIPPED: torch's tracker (PEAKLEDGER_TORCH_PYTHON names no python with torch and transformers)"
        );
        return;
    };
    let config = with_layers(config, 4);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/tracker.py");
    let said = Command::new(python).arg(script).arg(config.text()).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said = String::from_utf8(said.stdout).unwrap();
    let [step, process]: [f64; 2] =
        said.split_whitespace().map(|s| s.parse().unwrap()).collect::<Vec<_>>().try_into().unwrap();
    let options = Options { precision: Precision::Bf16, ..Options::default() };
    let in_process = best(200, || {
        std::hint::black_box(plan(Architecture::read(&config).unwrap(), options.clone()).unwrap());
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    std::fs::write(&file, config.text()).unwrap();
    let whole = best(20, || whole_process(&["plan", file.to_str().unwrap()]));
    let ratio = |theirs: f64, ours: Duration| theirs / ours.as_secs_f64();
    println!("beside torch's MemTracker, four layers, two steps");
    println!("  the step       {step:>7.2} s / {in_process:.2?} = {:.0}×", ratio(step, in_process));
    println!("  whole process  {process:>7.2} s / {whole:.2?} = {:.0}×", ratio(process, whole));
}

fn with_layers(config: &str, layers: u32) -> peakledger_input::Source {
    let mut config: serde_json::Value = serde_json::from_str(config).unwrap();
    config["num_hidden_layers"] = layers.into();
    peakledger_input::Source::from_text("config.json", config.to_string())
}

fn whole_process(arguments: &[&str]) {
    let run = Command::new(env!("CARGO_BIN_EXE_peakledger")).args(arguments).output().unwrap();
    assert!(run.status.success());
}

fn best(times: u32, mut run: impl FnMut()) -> Duration {
    let time = |_| {
        let began = Instant::now();
        run();
        began.elapsed()
    };
    (0..times).map(time).min().unwrap()
}

/// Plans of different options, each from the config to its contributors, on two threads.
fn many(llama: &peakledger_input::Source) {
    const PLANS: usize = 10_000;
    const THREADS: usize = 2;
    let variants: Vec<Options> = variants().collect();
    let architecture = Architecture::read(llama).unwrap();
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let work = || loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= PLANS {
            return;
        }
        // no two are the same: every round has lengths of its own
        let round = u64::try_from(at / variants.len()).unwrap();
        let variant = &variants[at % variants.len()];
        let options = Options { seq_len: Some(512 + 8 * round), ..variant.clone() };
        std::hint::black_box(plan(architecture.clone(), options).unwrap().contributors());
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let time = began.elapsed();
    println!("{PLANS} plans of {} kinds of options on {THREADS} threads  {time:>9.2?}", variants.len());
}

/// Every knob, and some together.
fn variants() -> impl Iterator<Item = Options> {
    let knobs = knobs().into_iter().map(|(_, options)| options);
    knobs
        .flat_map(|options| [1, 2, 4].map(|micro_batch_size| Options { micro_batch_size, ..options.clone() }))
}

fn knobs() -> Vec<(&'static str, Options)> {
    let plain = Options { precision: Precision::Bf16, ..Options::default() };
    let lora = Lora { rank: 16, dropout: 0.05, dtype: Dtype::F32, targets: LoraTargets::AllLinear };
    let offload = |activations, optimizer, parameters| Offload { activations, optimizer, parameters };
    vec![
        ("bf16", plain.clone()),
        ("bf16-mixed", Options { precision: Precision::Bf16Mixed, ..plain.clone() }),
        ("eager", Options { attention: Attention::Eager, ..plain.clone() }),
        ("recompute", Options { recompute: Recompute::Full, ..plain.clone() }),
        ("selective", Options { recompute: Recompute::Selective, ..plain.clone() }),
        ("lora", Options { lora: Some(lora.clone()), ..plain.clone() }),
        ("qlora", Options { lora: Some(lora), quantize: Some(Quantize::Nf4), ..plain.clone() }),
        ("fused", Options { optimizer_impl: Some(OptimizerImpl::Fused), ..plain.clone() }),
        ("adafactor", Options { optimizer: OptimizerKind::Adafactor, ..plain.clone() }),
        ("fused-loss", Options { fused_loss: true, ..plain.clone() }),
        ("offload activations", Options { offload: offload(true, false, false), ..plain.clone() }),
        ("offload parameters", Options { offload: offload(false, false, true), ..plain }),
    ]
}

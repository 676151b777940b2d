//! `cargo bench -p peakledger-cli --bench plan`: a plan in process and as a whole process, how it grows with layers,
//! micro-batches and sequence, many plans of different options on two threads, and, where torch is there, what its own op-level tracker takes for the same step.
//!
//! Set `PEAKLEDGER_TORCH_PYTHON` to a python with torch and transformers for the last part.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_precision_loss)] // a benchmark prints, and may stop

mod timing;

use peakledger_plan::catalogue::open_model;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{
    Attention, Lora, Offload, OptimizerImpl, OptimizerKind, Options, Precision, Quantize, Recompute,
};
use peakledger_plan::parallel::{Parallel, Schedule, Sharding, Shown, Stack, classes, plan_ranks};
use peakledger_plan::{Dtype, plan};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use timing::best;

/// That of the binary.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "one-rank");
    if arguments.next().is_some() {
        return one_rank(arguments.next().as_deref());
    }
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
    one_rank(None);
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
    let model = open_model("llama-3.1-70b").unwrap();
    let architecture = Architecture::read(&model.config).unwrap();
    let world = Parallel { gpus: Some(10_240), tp: 8, pp: 16, ..Parallel::default() };
    let options = Options { parallel: world, ..Options::default() };
    let sorted = best(20, || {
        std::hint::black_box(classes(&architecture, &options).unwrap());
    });
    println!("a pipeline of 16 stages, llama-3.1-70b");
    println!("  10,240 ranks in classes       {sorted:>9.2?}");
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

/// One rank's plan of a model that takes many GPUs, for each way of sharing it out, or for the one of that name.
fn one_rank(only: Option<&str>) {
    for name in ["llama-3.1-70b", "llama-3.1-405b", "qwen3-235b-a22b"] {
        let model = open_model(name).unwrap();
        let architecture = Architecture::read(&model.config).unwrap();
        println!("one rank of {name}");
        let one_card = Options { precision: Precision::Bf16, seq_len: Some(4096), ..Options::default() };
        let all = [("one card", one_card)].into_iter().chain(shared_out());
        for (kind, options) in all.filter(|(kind, _)| only.is_none_or(|only| only == *kind)) {
            let planned = || plan(architecture.clone(), options.clone());
            if let Err(refused) = planned() {
                println!("  {kind:<34} {refused}");
                continue;
            }
            let time = best(if only.is_some() { 200 } else { 5 }, || {
                std::hint::black_box(planned().unwrap().contributors());
            });
            println!("  {kind:<34} {time:>9.2?}");
        }
    }
}

/// Ways of sharing a step out over 16 to 64 GPUs.
fn shared_out() -> Vec<(&'static str, Options)> {
    let bf16 = Options { precision: Precision::Bf16, seq_len: Some(4096), ..Options::default() };
    let mixed = Options { precision: Precision::Bf16Mixed, ..bf16.clone() };
    let of = |dp, tp, pp| Parallel { dp: Some(dp), tp, pp, ..Parallel::default() };
    let tp8 = Parallel { sp: true, ..of(2, 8, 1) };
    let sharded = |options: &Options, sharding, dp| Options {
        parallel: Parallel { sharding, ..of(dp, 1, 1) },
        ..options.clone()
    };
    let megatron = |parallel: Parallel, recompute| Options {
        stack: Stack::Megatron,
        grad_dtype: Some(Dtype::F32),
        master_weights: Some(Dtype::F32),
        parallel,
        recompute,
        ..bf16.clone()
    };
    let stages = |options: Options, micro_batches| Options {
        gradient_accumulation_steps: micro_batches,
        parallel: Parallel { pp: 8, ..options.parallel.clone() },
        ..options
    };
    let zero1 = |parallel: Parallel| Parallel { sharding: Sharding::Zero1, ..parallel };
    let full = sharded(&mixed, Sharding::FullShard, 64);
    vec![
        ("tp 8", Options { parallel: of(1, 8, 1), ..bf16.clone() }),
        ("tp 8 sp", Options { parallel: Parallel { dp: Some(1), ..tp8.clone() }, ..bf16.clone() }),
        ("fsdp full_shard", full.clone()),
        ("fsdp full_shard, recompute", Options { recompute: Recompute::Full, ..full.clone() }),
        ("fsdp shard_grad_op", sharded(&mixed, Sharding::ShardGradOp, 64)),
        ("fsdp hybrid_shard", sharded(&mixed, Sharding::HybridShard, 64)),
        ("fsdp, 8 micro-batches", Options { gradient_accumulation_steps: 8, ..full }),
        (
            "tp 8 fsdp",
            Options { parallel: Parallel { sharding: Sharding::FullShard, ..of(8, 8, 1) }, ..mixed.clone() },
        ),
        ("ddp tp 8", Options { parallel: of(8, 8, 1), ..bf16.clone() }),
        ("ddp", sharded(&bf16, Sharding::Replicated, 64)),
        (
            "ddp, 8 micro-batches",
            Options { gradient_accumulation_steps: 8, ..sharded(&bf16, Sharding::Replicated, 64) },
        ),
        ("zero 1", sharded(&mixed, Sharding::Zero1, 64)),
        ("zero 2", sharded(&mixed, Sharding::Zero2, 64)),
        ("zero 3", sharded(&mixed, Sharding::Zero3, 64)),
        ("pp 8, 32 micro-batches", stages(bf16.clone(), 32)),
        ("pp 8 gpipe, 32 micro-batches", {
            let staged = stages(bf16.clone(), 32);
            Options { parallel: Parallel { schedule: Schedule::Gpipe, ..staged.parallel.clone() }, ..staged }
        }),
        ("megatron tp 8 sp", megatron(tp8.clone(), Recompute::None)),
        ("megatron tp 8 sp recompute", megatron(tp8.clone(), Recompute::Full)),
        ("megatron tp 8 sp selective", megatron(tp8.clone(), Recompute::Selective)),
        ("megatron tp 8 sp zero 1", megatron(zero1(tp8.clone()), Recompute::None)),
        (
            "megatron tp 8 sp, 8 micro-batches",
            Options { gradient_accumulation_steps: 8, ..megatron(tp8.clone(), Recompute::None) },
        ),
        ("megatron tp 8 sp pp 8 zero 1, 32", stages(megatron(zero1(tp8.clone()), Recompute::None), 32)),
        ("megatron tp 8 sp pp 8 recompute, 32", stages(megatron(tp8, Recompute::Full), 32)),
    ]
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
    let lora = Lora { rank: 16, dropout: 0.05, ..Lora::default() };
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

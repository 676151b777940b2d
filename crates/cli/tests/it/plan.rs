//! `plan` from outside: what it answers in every format, what its options change, and what it refuses.

use crate::support::Bench;
use insta::assert_snapshot;
use serde_json::{Value, json};

/// A model small enough that every figure can be followed.
fn small() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": false
    })
}

/// It in `config.json`.
fn bench() -> Bench {
    Bench::new().file("config.json", small().to_string())
}

fn answer_json(bench: &Bench, arguments: &str) -> Value {
    serde_json::from_str(&bench.answer(&format!("{arguments} --format json"))).unwrap()
}

fn steady_peak(bench: &Bench, options: &str) -> u64 {
    let plan = answer_json(bench, &format!("plan config.json --step steady {options}"));
    plan["peak"]["bytes"].as_u64().unwrap()
}

#[test]
fn a_table() {
    assert_snapshot!(bench().answer("plan config.json --gpu t4"), @"
    peak 5.52 MiB in backward of the steady step
    at loss_function: _log_softmax_backward_data
    fits: 14.40 GiB to spare on Tesla T4 (26.00 MiB reserved and 140.88 MiB of CUDA
    context, of 14.56 GiB)
    note: Tesla T4 has no bf16 (it is sm75, and bf16 begins with sm80): torch
          emulates it there, slowly; --precision fp16-mixed plans what is run
          instead
    config.json: 202,048 parameters

    model      transformers 5.24 modules (modeling_llama.py) on torch 2.15, every
               parameter trained
    batch      1 sequence of 128 tokens
    precision  weights, gradients and optimizer state in fp32, autocast to bf16
    attention  sdpa: the math path, since no fused kernel takes grouped heads here
               (--expand-kv repeats them)
    optimizer  AdamW (foreach, as torch picks on CUDA)
    recompute  none: activations are kept for backward
    loop       the logits go once the loss is computed; zero_grad sets gradients to
               None
    kernels    at device level: two cuBLAS workspaces of 8.13 MiB, for the loop's
               thread and autograd's, and what the backward kernels of attention,
               softmax and embedding allocate for themselves

       phase      first step  steady step     device
       load       791.50 KiB     2.32 MiB  18.57 MiB  ████████████▋
       forward      2.78 MiB     4.33 MiB  20.58 MiB  ███████████████████████▌
       loss         3.73 MiB     5.27 MiB  21.53 MiB  ████████████████████████████▋
    ▶  backward     3.97 MiB     5.52 MiB  21.77 MiB  ██████████████████████████████
       update       3.86 MiB     3.86 MiB  20.11 MiB  █████████████████████
       zero_grad    3.09 MiB     3.09 MiB  19.34 MiB  ████████████████▊

    at the peak
    gradients of the logits, fp32               1000.00 KiB  17.7 %  ██▋
    activations · layers 0–1 · attention         832.00 KiB  14.7 %  ██▎
    optimizer state · exp_avg                    790.50 KiB  14.0 %  ██▏
    optimizer state · exp_avg_sq                 790.50 KiB  14.0 %  ██▏
    parameters                                   790.50 KiB  14.0 %  ██▏
    log-probabilities, fp32                      500.00 KiB   8.9 %  █▍
    activations · layers 0–1 · mlp               320.00 KiB   5.7 %  ▉
    autocast copies of the weights, bf16         269.00 KiB   4.8 %  ▊
    activations · layers 0–1 · norms             130.00 KiB   2.3 %  ▍
    activations · layers 0–1 · residual stream   128.00 KiB   2.3 %  ▍
    and 7 more, 98.50 KiB

    device peak 21.77 MiB with the batch and kernel memory, in backward of the
    steady step
    reserved 26.00 MiB by the caching allocator, most of all in backward of the
    steady step: there 21.77 MiB allocated, 4.23 MiB free in segments that are
    partly in use
    costs of the steady step: 130.9 MFLOP; 45.13 MiB moved on the card; there is no
    theoretical time: Tesla T4 has no rate for bf16 (it has one for `--precision
    fp16-mixed`)
    not counted: the little that other kernels allocate inside themselves (sorting,
                 reductions, cuBLASLt)
    ");
}

#[test]
fn a_table_on_forty_columns() {
    let out = bench().env("COLUMNS", "40").answer("plan config.json --gpu 1GiB");
    assert!(out.lines().all(|line| line.chars().count() <= 40), "{out}");
    assert_snapshot!(out, @"
    peak 4.90 MiB in backward of the steady
    step
    at loss_function:
    _log_softmax_backward_data
    fits: 711.90 MiB to spare on 1GiB (26.00
    MiB reserved and 286.10 MiB of CUDA
    context, of 1.00 GiB)
    config.json: 202,048 parameters

    model      transformers 5.24 modules
               (modeling_llama.py) on torch
               2.15, every parameter trained
    batch      1 sequence of 128 tokens
    precision  weights, gradients and
               optimizer state in fp32,
               autocast to bf16
    attention  sdpa: the flash kernel (half
               types, no mask, sm80 or
               later)
    optimizer  AdamW (foreach, as torch
               picks on CUDA)
    recompute  none: activations are kept
               for backward
    loop       the logits go once the loss
               is computed; zero_grad sets
               gradients to None
    kernels    at device level: two cuBLAS
               workspaces of 8.13 MiB, for
               the loop's thread and
               autograd's, and what the
               backward kernels of
               attention, softmax and
               embedding allocate for
               themselves

      phase     first step steady step
      load      791.50 KiB    2.32 MiB ██▍
      forward     2.16 MiB    3.71 MiB ███▊
      loss        3.11 MiB    4.65 MiB ████▊
    ▶ backward    3.35 MiB    4.90 MiB █████
      update      3.86 MiB    3.86 MiB ████
      zero_grad   3.09 MiB    3.09 MiB ███▏

    at the peak
    gradients of …e logits, fp32 1000.00 KiB
    optimizer state · exp_avg     790.50 KiB
    optimizer state · exp_avg_sq  790.50 KiB
    parameters                    790.50 KiB
    log-probabilities, fp32       500.00 KiB
    activations ·…yers 0–1 · mlp  320.00 KiB
    autocast copi… weights, bf16  269.00 KiB
    activations ·…–1 · attention  198.00 KiB
    activations ·…rs 0–1 · norms  130.00 KiB
    activations ·…esidual stream  128.00 KiB
    and 7 more, 98.50 KiB

    device peak 21.15 MiB with the batch and
    kernel memory, in backward of the steady
    step
    reserved 26.00 MiB by the caching
    allocator, most of all in backward of
    the steady step: there 21.15 MiB
    allocated, 4.85 MiB free in segments
    that are partly in use
    costs of the steady step: 135.1 MFLOP;
    35.58 MiB moved on the card
    not counted: the little that other
                 kernels allocate inside
                 themselves (sorting,
                 reductions, cuBLASLt)
    ");
}

#[test]
fn a_table_in_ascii() {
    let out = bench().answer("plan config.json --ascii --gradient-accumulation-steps 4 --top 3");
    assert!(out.is_ascii());
    assert_snapshot!(out, @"
    peak 5.67 MiB in backward.1 of the steady step
    at loss_function: _log_softmax_backward_data
    config.json: 202,048 parameters

    model      transformers 5.24 modules (modeling_llama.py) on torch 2.15, every
               parameter trained
    batch      1 sequence of 128 tokens, 4 micro-batches a step, all on the device
               from the start
    precision  weights, gradients and optimizer state in fp32, autocast to bf16
    attention  sdpa: the flash kernel (half types, no mask, sm80 or later)
    optimizer  AdamW (foreach, as torch picks on CUDA)
    recompute  none: activations are kept for backward
    loop       the logits go once the loss is computed; zero_grad sets gradients to
               None
    kernels    at device level: two cuBLAS workspaces of 8.13 MiB, for the loop's
               thread and autograd's, and what the backward kernels of attention,
               softmax and embedding allocate for themselves

       phase         first step  steady step     device
       load          791.50 KiB     2.32 MiB  18.57 MiB  ###########
       forward.0       2.16 MiB     3.71 MiB  19.96 MiB  ##################
       loss.0          3.11 MiB     4.65 MiB  20.91 MiB  ######################
       backward.0      3.35 MiB     4.90 MiB  21.16 MiB  #######################
       forward.1-3     2.94 MiB     4.48 MiB  20.74 MiB  #####################
       loss.1-3        3.88 MiB     5.43 MiB  21.68 MiB  ##########################
    >  backward.1-3    4.13 MiB     5.67 MiB  21.93 MiB  ###########################
       update          3.86 MiB     3.86 MiB  20.12 MiB  ##################
       zero_grad       3.09 MiB     3.09 MiB  19.35 MiB  ###############

    at the peak
    gradients of the logits, fp32  1000.00 KiB  17.2 %  #####
    gradients                       790.50 KiB  13.6 %  ####
    optimizer state / exp_avg       790.50 KiB  13.6 %  ####
    and 15 more, 3.15 MiB

    device peak 21.93 MiB with the batch and kernel memory, in backward.1 of the
    steady step
    reserved 26.00 MiB by the caching allocator, most of all in backward.1 of the
    steady step: there 21.93 MiB allocated, 4.07 MiB free in segments that are
    partly in use
    costs of the steady step: 540.5 MFLOP; 102.99 MiB moved on the card
    not counted: the little that other kernels allocate inside themselves (sorting,
                 reductions, cuBLASLt)
    ");
}

#[test]
fn one_step_alone() {
    let first = bench().answer("plan config.json --step first");
    assert!(first.contains("of the first step") && !first.contains("steady"), "{first}");
    let steady = bench().answer("plan config.json --step steady");
    assert!(steady.contains("of the steady step") && !steady.contains("first"), "{steady}");
    let json = answer_json(&bench(), "plan config.json --step first");
    assert!(json.get("steady_step").is_none() && json.get("first_step").is_some());
    assert_eq!((&json["peak"]["step"], &json["device_peak"]["step"]), (&"first".into(), &"first".into()));
}

#[test]
fn csv() {
    assert_snapshot!(bench().answer("plan config.json --format csv --step steady"), @"
    step,phase,micro_batch,peak_bytes,end_bytes,device_peak_bytes,host_peak_bytes,parameter,master_weight,gradient,optimizer_state,activation,workspace,communication_buffer,is_peak,module,op,flops,recomputed_flops,bytes_moved,to_host_bytes,from_host_bytes
    steady,load,,2429440,2429440,19470848,0,810496,0,0,1618944,0,0,0,false,,end of phase,0,0,0,0,0
    steady,forward,0,3887104,3854336,20928512,0,810496,0,0,1618944,1457664,0,0,false,lm_head,mm,43646976,0,5468496,0,0
    steady,loss,0,4880896,4112896,21922304,0,810496,0,0,1618944,2451456,0,0,false,loss_function,nll_loss_forward,0,0,1795600,0,0
    steady,backward,0,5135360,3239424,22176768,0,810496,0,0,1618944,1681408,1024512,0,true,loss_function,_log_softmax_backward_data,91488256,0,13875716,0,0
    steady,update,,4048384,3238912,21089792,0,810496,0,809472,1618944,0,809472,0,false,optimizer,_foreach_sqrt,0,0,16163840,0,0
    steady,zero_grad,,3238912,2429440,20280320,0,810496,0,809472,1618944,0,0,0,false,,zero_grad,0,0,0,0,0
    ");
    let both = bench().answer("plan config.json --format csv");
    assert_eq!(both.lines().count(), 13, "titles, and six phases of two steps");
    assert_eq!(both.lines().filter(|line| line.contains(",true,")).count(), 1, "one peak");
}

#[test]
fn markdown() {
    let arguments = "plan config.json --format markdown --top 2 --gpu 1GiB";
    assert_snapshot!(bench().answer(arguments), @r"
    **Peak 4.90 MiB in backward of the steady step**, at loss_function: \_log_softmax_backward_data

    fits: 711.90 MiB to spare on 1GiB (26.00 MiB reserved and 286.10 MiB of CUDA context, of 1.00 GiB)

    | assumed |  |
    | --- | --- |
    | model | transformers 5.24 modules (modeling_llama.py) on torch 2.15, every parameter trained |
    | batch | 1 sequence of 128 tokens |
    | precision | weights, gradients and optimizer state in fp32, autocast to bf16 |
    | attention | sdpa: the flash kernel (half types, no mask, sm80 or later) |
    | optimizer | AdamW (foreach, as torch picks on CUDA) |
    | recompute | none: activations are kept for backward |
    | loop | the logits go once the loss is computed; zero_grad sets gradients to None |
    | kernels | at device level: two cuBLAS workspaces of 8.13 MiB, for the loop's thread and autograd's, and what the backward kernels of attention, softmax and embedding allocate for themselves |

    | phase | first | steady |
    | --- | ---: | ---: |
    | load | 791.50 KiB | 2.32 MiB |
    | forward | 2.16 MiB | 3.71 MiB |
    | loss | 3.11 MiB | 4.65 MiB |
    | backward | 3.35 MiB | 4.90 MiB |
    | update | 3.86 MiB | 3.86 MiB |
    | zero_grad | 3.09 MiB | 3.09 MiB |

    At the peak:

    | who | category | size | share |
    | --- | --- | ---: | ---: |
    | gradients of the logits, fp32 | workspace | 1000.00 KiB | 19.9 % |
    | optimizer state · exp_avg | optimizer_state | 790.50 KiB | 15.8 % |

    and 15 more, 3.15 MiB

    device peak 21.15 MiB with the batch and kernel memory, in backward of the steady step

    reserved 26.00 MiB by the caching allocator, most of all in backward of the steady step: there 21.15 MiB allocated, 4.85 MiB free in segments that are partly in use

    costs of the steady step: 135.1 MFLOP; 35.58 MiB moved on the card

    Not counted: the little that other kernels allocate inside themselves (sorting, reductions, cuBLASLt)
    ");
}

/// Design §5, field by field.
#[test]
fn json_has_the_fields_that_others_build_on() {
    let arguments = "plan config.json --gpu a100-80gb --gradient-accumulation-steps 2";
    let plan = answer_json(&bench(), arguments);
    // 2 × 1000 × 64 for the embedding and the head; a layer: 64 × (64 + 32 + 32 + 64) + 3 × 64 × 128 + 2 × 64; a last norm
    assert_eq!(plan["model"]["parameters"], 128_000 + 2 * (12_288 + 24_576 + 128) + 64);
    assert_eq!(plan["model"]["trainable"], plan["model"]["parameters"]);
    for step in ["first_step", "steady_step"] {
        let phases = plan[step]["phases"].as_array().unwrap();
        let names: Vec<(&str, Option<u64>)> =
            phases.iter().map(|phase| (text(&phase["phase"]), phase["micro_batch"].as_u64())).collect();
        let micro_batch = |i| [("forward", Some(i)), ("loss", Some(i)), ("backward", Some(i))];
        let mut wanted = vec![("load", None)];
        wanted.extend((0..2).flat_map(micro_batch));
        wanted.extend([("update", None), ("zero_grad", None)]);
        assert_eq!(names, wanted);
        for phase in phases {
            let peak = phase["peak_bytes"].as_u64().unwrap();
            assert_eq!(sum(&phase["by_category"]), peak, "{phase}");
            assert!(phase["end_bytes"].as_u64().unwrap() <= peak);
            assert!(phase["device_peak_bytes"].as_u64().unwrap() >= peak);
            assert_eq!(peak % 512, 0, "whole blocks");
            assert!(phase["micro_batch"].is_u64() || phase["micro_batch"].is_null());
        }
        let load = &phases[0]["by_category"];
        assert_eq!(load.get("optimizer_state").is_some(), step == "steady_step", "the first step makes it");
    }
    assert_eq!(
        keys(&plan["peak"]),
        ["by_category", "bytes", "contributors", "micro_batch", "module", "op", "phase", "step"]
    );
    let peak = &plan["peak"];
    assert_eq!(sum(&peak["by_category"]), peak["bytes"].as_u64().unwrap());
    let contributors = peak["contributors"].as_array().unwrap();
    let sizes: Vec<u64> = contributors.iter().map(|c| c["bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes.iter().sum::<u64>(), peak["bytes"].as_u64().unwrap(), "nothing is left out");
    assert!(sizes.is_sorted_by(|a, b| a >= b));
    assert!(contributors.iter().all(|c| !text(&c["name"]).is_empty() && c["category"].is_string()));
    let at = phase_of(&plan, text(&peak["step"]), text(&peak["phase"]), &peak["micro_batch"]);
    assert_eq!((&at["peak_bytes"], &at["module"], &at["op"]), (&peak["bytes"], &peak["module"], &peak["op"]));

    let device = &plan["device_peak"];
    assert_eq!(keys(device), ["bytes", "micro_batch", "phase", "step"]);
    let at = phase_of(&plan, text(&device["step"]), text(&device["phase"]), &device["micro_batch"]);
    assert_eq!(at["device_peak_bytes"], device["bytes"]);
    let reserved = &plan["allocator"];
    let number = |value: &Value| value.as_i64().unwrap();
    assert_eq!(text(&reserved["settings"]), "default");
    let [held, most] = [&plan["reserved_bytes"], &reserved["max_allocated_bytes"]].map(number);
    assert!(held >= most && most >= number(&device["bytes"]) && held % (2 << 20) == 0, "{held} and {most}");
    let parts = ["allocated_bytes", "returnable_bytes", "stuck_bytes"].map(|part| number(&reserved[part]));
    assert_eq!(parts.iter().sum::<i64>(), held, "nothing of it is left out");
    assert!(reserved["oom"].is_null());

    let verdict = &plan["verdict"];
    assert_eq!((text(&verdict["gpu"]), &verdict["fits"]), ("a100-80gb", &true.into()));
    let needed = held + number(&plan["outside_bytes"]);
    assert_eq!(text(&verdict["compared"]), "reserved + outside");
    assert_eq!(number(&verdict["headroom_bytes"]), number(&verdict["capacity_bytes"]) - needed);
    assert!(!plan["not_counted"].as_array().unwrap().is_empty());
    assert!(answer_json(&bench(), "plan config.json")["verdict"].is_null());
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

fn sum(by_category: &Value) -> u64 {
    by_category.as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum()
}

fn phase_of<'a>(plan: &'a Value, step: &str, phase: &str, micro_batch: &Value) -> &'a Value {
    let phases = plan[format!("{step}_step")]["phases"].as_array().unwrap();
    phases.iter().find(|row| row["phase"] == phase && row["micro_batch"] == *micro_batch).unwrap()
}

#[test]
fn the_peak_is_the_steady_steps_unless_the_first_is_larger() {
    // with AdamW and foreach both steps peak in update at the same height
    let plan = answer_json(&bench(), "plan config.json --seq-len 1");
    let [first, steady] =
        ["first", "steady"].map(|step| &phase_of(&plan, step, "update", &Value::Null)["peak_bytes"]);
    assert_eq!((first, text(&plan["peak"]["step"])), (steady, "steady"));
}

#[test]
fn options_that_are_left_out_have_the_defaults_of_the_help() {
    let bench = bench();
    let said = "--micro-batch-size 1 --seq-len 128 --gradient-accumulation-steps 1 --precision bf16-mixed --optimizer adamw \
                --optimizer-impl foreach --momentum 0 --attention sdpa --expand-kv=false --recompute none \
                --clip-grad-norm=false --hold-outputs=no --step both";
    let [silent, said] = ["", said].map(|options| {
        let mut plan = answer_json(&bench, &format!("plan config.json {options}"));
        plan.as_object_mut().unwrap().remove("assumptions"); // which tell a default from a choice
        plan
    });
    assert_eq!(silent, said);
    for same in ["--batch 1 --seq 128", "--gradient-checkpointing=false"] {
        assert_eq!(bench.answer(&format!("plan config.json {same}")), bench.answer("plan config.json"));
    }
}

#[test]
fn each_option_does_what_its_word_says() {
    let bench = bench();
    let peak = |options: &str| steady_peak(&bench, options);
    let plain = peak("--seq 128 --batch 4");
    for (option, less) in [
        ("--recompute full", true),
        ("--gradient-checkpointing", true),
        ("--recompute every:2", true),
        ("--recompute selective", true),
        ("--offload activations", true),
        ("--offload optimizer", true),
        ("--offload activations,optimizer,parameters", true),
        ("--fused-loss", true),
        ("--freeze model.embed_tokens", true),
        ("--weights-dtype bf16", true),
        ("--optimizer sgd", true),
        ("--optimizer adafactor", true),
        ("--optimizer lion", true),
        ("--optimizer muon", true),
        ("--optimizer adamw-8bit", true),
        ("--lora r=8", true),
        ("--lora r=8 --quantize nf4 --prepare-for-kbit", true),
        ("--optimizer sgd --momentum 0.9", true),
        ("--precision bf16", true),
        ("--precision fp16", true),
        ("--attention eager", false),
        ("--attention-mask padded", false),
        ("--precision fp32", false),
        ("--hold-outputs --precision fp32", false),
        ("--batch 8", false),
        ("--gradient-accumulation-steps 2", false),
    ] {
        let with = peak(&format!(
            "--seq 128 {} {option}",
            if option.contains("--batch") { "" } else { "--batch 4" }
        ));
        assert_eq!(with < plain, less, "{option}: {with} beside {plain}");
        assert_ne!(with, plain, "{option} changes nothing");
    }
    let sgd = peak("--optimizer sgd");
    assert!(sgd < peak("--optimizer sgd --momentum 0.9"), "a momentum buffer");
    assert_eq!(sgd, peak("--optimizer sgd --momentum 0"), "no momentum, no buffer");
    let packed = |kind: &str| peak(&format!("--seq 1 --precision bf16 --lora r=1 {kind}"));
    assert!(packed("--quantize nf4") < packed(""), "four bits are less than sixteen");
    assert!(packed("--quantize nf4") < packed("--quantize int8"), "and than eight");
    assert!(packed("--quantize nf4 --prepare-for-kbit") > packed("--quantize nf4"), "fp32 is more than bf16");
    let loss = |option: &str| {
        let options = "--seq 128 --lora r=1 --precision fp16";
        let plan = answer_json(&bench, &format!("plan config.json {options} {option}"));
        let phases = plan["steady_step"]["phases"].as_array().unwrap().clone();
        phases.iter().find(|phase| phase["phase"] == "loss").unwrap()["peak_bytes"].as_u64().unwrap()
    };
    let hidden = 128 * 64 * 2;
    assert_eq!(loss("--loss-in-model"), loss("") + hidden, "the last hidden states are held longer");
}

#[test]
fn outputs_are_held_as_long_as_is_said() {
    let bench = bench();
    let ends = |options: &str| -> Vec<u64> {
        let plan = answer_json(&bench, &format!("plan config.json --precision fp32 {options}"));
        let phases = plan["steady_step"]["phases"].as_array().unwrap().clone();
        phases.iter().map(|phase| phase["end_bytes"].as_u64().unwrap()).collect()
    };
    // load, forward, loss, backward, update, zero_grad; the logits are 128 × 1000 numbers of four bytes
    let [dropped, backward, step] = ["", "--hold-outputs", "--hold-outputs=step"].map(ends);
    let logits = 128 * 1000 * 4;
    let held = |ends: &[u64], at: usize| ends[at] - dropped[at];
    assert_eq!(ends("--hold-outputs=backward"), backward);
    assert_eq!(ends("--hold-outputs=no"), dropped);
    for at in [3, 4, 5] {
        assert_eq!(held(&step, at), logits, "to the end of the step");
    }
    assert_eq!((held(&backward, 3), held(&backward, 4)), (logits, 0), "to the end of backward");
}

#[test]
fn no_is_one_only_where_it_is_asked() {
    let bench = bench();
    for (arguments, code) in [
        ("--gpu 1GiB --exit-code", 0),
        ("--gpu 200MiB --exit-code", 1),
        ("--gpu 200MiB", 0),
        ("--gpu 200MiB --exit-code --format json", 1),
    ] {
        let ran = bench.run(&format!("plan config.json {arguments}"));
        assert_eq!((ran.code, ran.err.as_str()), (Some(code), ""), "{arguments}");
        assert!(!ran.out.is_empty(), "it answers either way");
    }
    let small = bench.answer("plan config.json --gpu 200MiB");
    assert!(small.contains("does not fit: ") && small.contains(" too much for 200MiB"), "{small}");
    let said = bench.refusal("plan config.json --exit-code");
    assert!(said.contains("--gpu"), "{said}");
}

#[test]
fn cards_by_name_and_by_amount() {
    let bench = bench();
    for name in ["a100-80gb", "A100-80GB", "rtx-4090", "RTX 4090", "rtx_4090", "80GiB", "24gb", "1.5TiB"] {
        let out = bench.command("plan config.json --gpu").arg(name).output().unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
    assert_snapshot!(bench.refusal("plan config.json --gpu h100-8o"), @"
    error: `--gpu`: the card `h100-8o` is not known
      help: `peakledger list gpus` shows the known ones; an amount such as 80GiB works too
    ");
    assert_snapshot!(bench.refusal("plan config.json --gpu tpu-v5"), @"
    error: `--gpu`: the card `tpu-v5` is not known
      help: `peakledger list gpus` shows the known ones; an amount such as 80GiB works too
    ");
    for wrong in ["0GiB", "-1GiB", "80", "GiB", "80QiB", "99999999999999999999GiB", "NaNGiB", "1e3GiB"] {
        let ran = bench.run(&format!("plan config.json --gpu={wrong}"));
        assert_eq!(ran.code, Some(2), "{wrong}: {}", ran.out);
        assert!(ran.err.contains("`--gpu`") && ran.err.contains("80GiB"), "{wrong}: {}", ran.err);
    }
}

#[test]
fn an_old_card_has_no_flash_attention() {
    let bench = bench();
    let attention = |gpu: &str| {
        let plan = answer_json(&bench, &format!("plan config.json --precision bf16 {gpu}"));
        text(&plan["assumptions"]["attention"]).to_owned()
    };
    assert!(attention("").contains("flash") && attention("--gpu a100-80gb").contains("flash"));
    assert!(attention("--gpu t4").contains("math path"), "{}", attention("--gpu t4"));
}

#[test]
fn candidates_beside_the_step() {
    let bench = bench();
    let mut command = bench.command("plan config.json --batch 8 --step steady --top 1");
    command.args([
        "--candidate",
        "recompute: --recompute full",
        "--candidate",
        "smaller batch:--batch 4 --recompute none",
    ]);
    command.args(["--candidate", "as it is:"]);
    let out = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let table = &out[out.find("candidates").unwrap()..out.find("device peak").unwrap()];
    assert_snapshot!(table, @"
    candidates
                        peak     saves          cost  in
    baseline       20.99 MiB               1.1 GFLOP  backward, steady
    recompute      15.30 MiB  5.69 MiB  +184.5 MFLOP  backward, steady
    smaller batch  11.80 MiB  9.20 MiB  -540.5 MFLOP  backward, steady
    as it is       20.99 MiB       0 B       +0 FLOP  backward, steady
    without room: most moved, for it (COLUMNS=107 shows them)
    ");
    let json = command.args(["--format", "json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let names: Vec<&String> = json["candidates"].as_object().unwrap().keys().collect();
    assert_eq!(names.len(), 3);
    for (name, options) in [
        ("recompute", "--batch 8 --recompute full"),
        ("smaller batch", "--batch 4"),
        ("as it is", "--batch 8"),
    ] {
        let candidate = &json["candidates"][name];
        assert_eq!(candidate["bytes"], steady_peak(&bench, options), "{name} is the plan with its options");
        let saving = json["peak"]["bytes"].as_i64().unwrap() - candidate["bytes"].as_i64().unwrap();
        assert_eq!(candidate["memory_saving_bytes"], saving, "{name}");
        assert!(candidate["verdict"].is_null(), "{name}: no card");
    }
}

/// What out-of-memory asks first: which of these fits.
#[test]
fn candidates_on_a_card() {
    let bench = bench();
    let answer = |gpu: &str, candidates: &[&str], more: &[&str]| {
        let mut command = bench.command("plan config.json --batch 8 --step steady --top 1");
        command.args(["--gpu", gpu]).args(more);
        for candidate in candidates {
            command.args(["--candidate", candidate]);
        }
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let table =
        |out: String| out[out.find("candidates\n").unwrap()..out.find("device peak ").unwrap()].to_owned();
    let heading = |out: String| out[..out.find("config.json:").unwrap()].to_owned();
    let three = ["recompute: --recompute full", "half: --batch 4", "twice: --batch 16"];

    assert_snapshot!(heading(answer("336MiB", &three, &[])), @"
    peak 20.99 MiB in backward of the steady step
    at loss_function: _log_softmax_backward_data
    does not fit: 2.10 MiB too much for 336MiB (52.00 MiB reserved on a larger card
    and 286.10 MiB of CUDA context, of 336.00 MiB); it runs out in backward of the
    first step: 20.00 MiB asked for with 19.90 MiB left, though no more than 37.26
    MiB is ever allocated: 6.32 MiB of what is reserved is free
    it fits with recompute (1.90 MiB to spare, on the edge) and half (1.90 MiB to
    spare, on the edge)
    ");
    assert_snapshot!(table(answer("336MiB", &three, &[])), @"
    candidates
                    peak  fits                          saves          cost
    baseline   20.99 MiB  no: 2.10 MiB too much                   1.1 GFLOP
    recompute  15.30 MiB  edge: 1.90 MiB to spare    5.69 MiB  +184.5 MFLOP
    half       11.80 MiB  edge: 1.90 MiB to spare    9.20 MiB  -540.5 MFLOP
    twice      39.39 MiB  no: 30.10 MiB too much   -18.39 MiB    +1.1 GFLOP
    without room: in, most moved, for it (COLUMNS=131 shows them)
    ");
    assert_snapshot!(table(answer("1GiB", &three[..1], &["--ascii"])), @"
    candidates
                    peak  fits                         saves          cost
    baseline   20.99 MiB  yes: 685.90 MiB to spare               1.1 GFLOP
    recompute  15.30 MiB  yes: 689.90 MiB to spare  5.69 MiB  +184.5 MFLOP
    without room: in, most moved, for it (COLUMNS=129 shows them)
    ");
    assert_snapshot!(heading(answer("200MiB", &three, &[])), @"
    peak 20.99 MiB in backward of the steady step
    at loss_function: _log_softmax_backward_data
    does not fit: 138.10 MiB too much for 200MiB (52.00 MiB reserved on a larger
    card and 286.10 MiB of CUDA context, of 200.00 MiB); it runs out in load of the
    first step: 2.00 MiB asked for with 0 B left
    no candidate fits; the closest is recompute (134.10 MiB too much); `peakledger
    fit` tries several together
    ");
    assert!(!heading(answer("1GiB", &three, &[])).contains("it fits with"), "as it does as it is");

    let names: Vec<String> = (0..13).map(|i| format!("seq {i}: --batch 1 --seq {}", i + 1)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_snapshot!(heading(answer("336MiB", &names, &[])), @"
    peak 20.99 MiB in backward of the steady step
    at loss_function: _log_softmax_backward_data
    does not fit: 2.10 MiB too much for 336MiB (52.00 MiB reserved on a larger card
    and 286.10 MiB of CUDA context, of 336.00 MiB); it runs out in backward of the
    first step: 20.00 MiB asked for with 19.90 MiB left, though no more than 37.26
    MiB is ever allocated: 6.32 MiB of what is reserved is free
    it fits with seq 0 (25.90 MiB to spare, on the edge) and 12 more
    ");

    let markdown = answer("336MiB", &three, &["--format", "markdown"]);
    assert_snapshot!(&markdown[..markdown.find("| assumed").unwrap()], @r"
    **Peak 20.99 MiB in backward of the steady step**, at loss_function: \_log_softmax_backward_data

    does not fit: 2.10 MiB too much for 336MiB (52.00 MiB reserved on a larger card and 286.10 MiB of CUDA context, of 336.00 MiB); it runs out in backward of the first step: 20.00 MiB asked for with 19.90 MiB left, though no more than 37.26 MiB is ever allocated: 6.32 MiB of what is reserved is free

    it fits with recompute (1.90 MiB to spare, on the edge) and half (1.90 MiB to spare, on the edge)
    ");
    assert_snapshot!(&markdown[markdown.find("| candidate").unwrap()..markdown.find("device peak ").unwrap()], @"
    | candidate | peak | fits | saves | cost | in | most moved | for it |
    | --- | ---: | --- | ---: | ---: | --- | --- | --- |
    | baseline | 20.99 MiB | no: 2.10 MiB too much |  | 1.1 GFLOP | backward, steady |  |  |
    | recompute | 15.30 MiB | edge: 1.90 MiB to spare | 5.69 MiB | +184.5 MFLOP | backward, steady | activation -5.69 MiB | 184.5 MFLOP again |
    | half | 11.80 MiB | edge: 1.90 MiB to spare | 9.20 MiB | -540.5 MFLOP | backward, steady | activation -5.29 MiB |  |
    | twice | 39.39 MiB | no: 30.10 MiB too much | -18.39 MiB | +1.1 GFLOP | backward, steady | activation +10.58 MiB |  |
    ");

    let json: Value = serde_json::from_str(&answer("336MiB", &three, &["--format", "json"])).unwrap();
    for (name, options) in
        [("recompute", "--batch 8 --recompute full"), ("half", "--batch 4"), ("twice", "--batch 16")]
    {
        let alone = answer_json(&bench, &format!("plan config.json --step steady --gpu 336MiB {options}"));
        assert_eq!(
            json["candidates"][name]["verdict"], alone["verdict"],
            "{name}: the plan's with its options"
        );
    }
    assert_eq!(json["candidates"]["half"]["verdict"]["fits"], true);
    assert_eq!(json["candidates"]["twice"]["verdict"]["fits"], false);
}

#[test]
fn candidates_keep_to_a_narrow_terminal() {
    let bench = bench().env("COLUMNS", "40");
    let mut command = bench.command("plan config.json --batch 8 --gpu 300MiB");
    command.args(["--candidate", "a name that is much longer than there is room for: --batch 4"]);
    let out = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(out.lines().all(|line| line.chars().count() <= 40), "{out}");
}

#[test]
fn what_a_candidate_cannot_be() {
    let bench = bench();
    let refusal = |candidates: &[&str]| {
        let mut command = bench.command("plan config.json");
        for candidate in candidates {
            command.args(["--candidate", candidate]);
        }
        let ran = command.output().unwrap();
        assert_eq!((ran.status.code(), ran.stdout.as_slice()), (Some(2), b"".as_slice()), "{candidates:?}");
        String::from_utf8(ran.stderr).unwrap()
    };
    for (candidates, says) in [
        (&["recompute"][..], &["`recompute` has no name", "\"recompute: --recompute full\""][..]),
        (&["--recompute full"], &["has no name"]),
        (&[": --recompute full"], &["without a name"]),
        (&["a: --recompute ful"], &["`a`", "ful", "--recompute"]),
        (&["a: --recompte full"], &["`a`", "--recompte"]),
        (&["a: full"], &["`a`", "full"]),
        (&["a: --gpu t4"], &["`a`", "--gpu"]),
        (&["a: --seq 0"], &["`a`", "--seq-len", "0 tokens"]),
        (&["a: --momentum 0.9"], &["`a`", "--momentum", "SGD"]),
        (&["a: --momentum 2"], &["`a`", "--momentum", "0 to 1"]),
        (&["a: --seq 8", "a: --seq 16"], &["two candidates are named `a`"]),
        (&["\u{1b}[31mred: --seq 0"], &["\\u{1b}[31mred"]),
    ] {
        let said = refusal(candidates);
        assert!(
            said.starts_with("error: `--candidate`: ") && said.contains("\n  help: "),
            "{candidates:?}: {said}"
        );
        assert!(says.iter().all(|says| said.contains(says)), "{candidates:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 2, "{said}");
    }
}

#[test]
fn a_saved_plan_is_a_ledger() {
    let bench = bench();
    bench.answer("plan config.json --batch 8 --save base.json");
    bench.answer("plan config.json --batch 8 --recompute full --save recompute.json");
    bench.answer("plan config.json --batch 8 --step first --save first.json");
    let plan = answer_json(&bench, "plan config.json --batch 8");
    for (file, step) in [("base.json", "steady_step"), ("first.json", "first_step")] {
        let shown = answer_json(&bench, &format!("show {file}"));
        let planned = plan[step]["phases"].as_array().unwrap();
        let phases = shown["phases"].as_array().unwrap();
        assert_eq!(phases.len(), planned.len());
        for (shown, planned) in phases.iter().zip(planned) {
            assert_eq!(shown["phase"], planned["phase"]);
            assert_eq!(shown["micro_batch"], planned["micro_batch"]);
            assert_eq!(shown["total_bytes"], planned["device_peak_bytes"], "{file}: {}", shown["phase"]);
        }
        assert!(shown["peak"]["peak_op"].is_string());
    }
    assert!(bench.answer("check base.json").contains("valid (a document)"));
    let compared = answer_json(&bench, "compare base.json recompute=recompute.json");
    let saved = answer_json(&bench, "plan config.json --batch 8 --recompute full");
    let bytes = |plan: &Value| {
        plan["steady_step"]["phases"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["device_peak_bytes"].as_i64().unwrap())
            .max()
            .unwrap()
    };
    assert_eq!(compared["candidates"]["recompute"]["memory_saving_bytes"], bytes(&plan) - bytes(&saved));
    assert_snapshot!(bench.answer("compare base.json recompute=recompute.json --top 2"), @"
                    peak                                           saves  in
    baseline   37.26 MiB  ████████████████████████████████████            backward.0
    recompute  31.57 MiB  ██████████████████████████████▌       5.69 MiB  backward.0

    recompute: saves 5.69 MiB (15.3 %)
      model.layers.0.input_layernorm: mul.Tensor  256.00 KiB  → 0 B
      model.layers.0.mlp.act_fn: silu             256.00 KiB  → 0 B
      and 55 more, 5.19 MiB less in all
    ");
}

#[test]
fn a_saved_plan_overwrites_nothing_unasked() {
    let bench = bench().file("there.json", "mine");
    let said = bench.refusal("plan config.json --save there.json");
    assert!(said.contains("there.json: the file exists") && said.contains("--force"), "{said}");
    assert_eq!(bench.read("there.json"), "mine");
    bench.answer("plan config.json --save there.json --force");
    assert!(bench.read("there.json").contains("\"schema_version\":1"));
    let said = bench.refusal("plan config.json --save config.json --force");
    assert!(said.contains("one of the inputs"), "{said}");
    bench.refusal("plan config.json --save none/there.json");
    bench.refusal("plan nothing.json --save out.json");
    assert_eq!(bench.names(), ["config.json", "there.json"], "a refusal leaves no file");
}

#[test]
fn a_model_is_found_by_name_path_folder_cache_and_pipe() {
    let config = small().to_string();
    let bench = Bench::new().file("config.json", &config);
    let here = bench.path("").to_str().unwrap().to_owned();
    let hub = "hub/models--org--tiny";
    for folder in ["snapshots/aaa", "snapshots/bbb", "refs"] {
        std::fs::create_dir_all(bench.path(&format!("{hub}/{folder}"))).unwrap();
    }
    let larger = config.replace("\"num_hidden_layers\":2", "\"num_hidden_layers\":3");
    assert_ne!(larger, config);
    let bench = bench.file(&format!("{hub}/snapshots/aaa/config.json"), &config);
    let bench = bench
        .file(&format!("{hub}/snapshots/bbb/config.json"), larger)
        .file(&format!("{hub}/refs/main"), "aaa\n");
    let bench = bench.env("HF_HUB_CACHE", &format!("{here}/hub")).env("HF_HOME", "/nowhere");
    let parameters =
        |model: &str| answer_json(&bench, &format!("plan {model}"))["model"]["parameters"].clone();
    let wanted = parameters("config.json");
    for model in [".", here.as_str(), "org/tiny"] {
        assert_eq!(parameters(model), wanted, "{model}");
    }
    assert_eq!(bench.pipe("plan - --format csv", &config).code, Some(0));
    assert_eq!(parameters("llama-3.2-1b"), 1_235_814_400);
    assert_eq!(parameters("LLaMA-3.2-1B"), 1_235_814_400);
    assert_eq!(parameters("meta-llama/Llama-3.2-1B"), 1_235_814_400, "its name on the hub");
    std::fs::write(bench.path(&format!("{hub}/refs/main")), "gone").unwrap();
    assert_ne!(parameters("org/tiny"), wanted, "without the revision that main names, the last one");

    for (model, says) in [
        ("lama-3.1-8b", &["`lama-3.1-8b` is not known", "did you mean `llama-3.1-8b`"][..]),
        ("org/none", &["`org/none` is not known", "nothing is downloaded"]),
        ("../tiny/x", &["no such file"]),
        ("hub", &["no config.json"]),
        ("nowhere.json", &["nowhere.json: no such file"]),
        ("org/tiny/more", &["not known"]),
    ] {
        let said = bench.refusal(&format!("plan {model}"));
        assert!(
            says.iter().all(|says| said.contains(says)) && said.contains("\n  help: "),
            "{model}: {said}"
        );
    }
}

#[test]
fn steps_that_cannot_be() {
    let bench = bench();
    for (options, says) in [
        ("--micro-batch-size 0", "0 sequences"),
        ("--batch 0", "0 sequences"),
        ("--seq-len 0", "0 tokens"),
        ("--gradient-accumulation-steps 0", "0 micro-batches"),
        ("--gradient-accumulation-steps 4000000000", "--gradient-accumulation-steps"),
        ("--gradient-accumulation-steps 99999999999", "99999999999"),
        ("--micro-batch-size 4294967297 --seq-len 1", "more than 2^32"),
        ("--micro-batch-size 18446744073709551615 --seq-len 18446744073709551615", "more than 2^32"),
        ("--seq-len 18446744073709551616", "18446744073709551616"),
        ("--seq-len=-1", "-1"),
        ("--seq-len 2.5", "2.5"),
        ("--momentum 0.9", "only SGD"),
        ("--optimizer sgd --momentum NaN", "NaN is no momentum"),
        ("--optimizer sgd --momentum=-0.1", "-0.1 is no momentum"),
        ("--optimizer adam", "adamw"),
        ("--precision fp8", "bf16-mixed"),
        ("--recompute full --gradient-checkpointing", "does not go with `--gradient-checkpointing`"),
        ("--hold-outputs=never", "backward"),
        ("--hold-outputs step", "step"),
        ("--step last", "steady"),
        ("--lora r=0", "1 to 65536"),
        ("--lora rank=8", "`rank` is none of r,"),
        ("--lora r=8,dropout=2", "0 to below 1"),
        ("--lora r=8,targets=w1", "no linear module named `w1`"),
        ("--optimizer adafactor --optimizer-impl fused", "forloop"),
        ("--optimizer adamw-8bit --optimizer-impl fused", "one implementation"),
        ("--optimizer lion --optimizer-impl foreach", "one implementation"),
        ("--recompute every:0", "`0` is no number of layers"),
        ("--recompute sometimes", "every:N"),
        ("--precision fp16-mixed --weights-dtype fp16", "GradScaler"),
        ("--experts eager", "the model has no experts"),
        ("--experts batched_mm", "grouped_mm"),
        ("--expert-imbalance lots", "not a number"),
        ("--quantize nf4", "--lora"),
        ("--quantize int4 --lora r=8", "nf4-double"),
        ("--prepare-for-kbit --lora r=8", "--quantize nf4"),
        ("--offload cpu", "`cpu` is none of its values"),
        ("--offload=", "choose of `activations`"),
        ("--offload-prefetch -1", "is not a whole number"),
        ("--offload optimizer --clip-grad-norm", "before there is a norm"),
        ("--offload optimizer --optimizer adamw-8bit", "on the device alone"),
        ("--offload parameters --precision bf16 --master-weights fp32", "on the device alone"),
        ("--master-weights fp32", "that type already"),
        ("--precision bf16 --grad-dtype fp32", "the type of --master-weights"),
        ("--precision bf16 --master-weights fp32 --lora r=8", "`--lora r=16,dtype=fp32`"),
        ("--freeze model.embed", "did you mean `model.embed_tokens`?"),
        ("--freeze model.layers.1-0", "ends before it begins"),
        ("--freeze model.layers.7-9", "beyond the last of `model.layers`, which is 1"),
        ("--freeze model.layers.0-2", "beyond the last"),
        ("--freeze transformer.wte", "it has "),
        ("--offload-prefetch 2", "nothing is copied ahead"),
        ("--expert-imbalance 2", "--experts eager"),
        ("--freeze model+lm_head", "nothing of the model"),
        ("--freeze model.norm --lora r=8", "frozen already"),
        ("--freeze +", "empty part"),
        ("--fused-loss --hold-outputs", "no logits"),
        ("--fused-loss --lora r=8,targets=lm_head", "the head has an adapter"),
    ] {
        let said = bench.refusal(&format!("plan config.json {options}"));
        assert!(said.starts_with("error: ") && said.contains(says), "{options}: {said}");
    }
}

#[test]
fn a_model_that_is_split_says_whose_way_it_is() {
    let bench = Bench::new();
    let parallel = |model: &str, options: &str| {
        let answer =
            answer_json(&bench, &format!("plan {model} --precision bf16 --batch 1 --seq 64 {options}"));
        text(&answer["assumptions"]["parallel"]).to_owned()
    };
    assert!(
        parallel("llama-3.2-1b", "--tp 4").contains("tensor parallel over 4 ranks by the family's tp_plan")
    );
    assert!(
        parallel("llama-3.2-1b", "--tp 4 --sp").contains("as torchtitan's parallelize_llama combines them")
    );
    let experts = parallel("mixtral-8x7b", "--tp 2 --ep 2 --expert-imbalance 1.5");
    assert!(experts.contains("whole experts spread over 2 ranks"), "{experts}");
    assert!(experts.contains("receives 1.5 times the rows that it sends"), "{experts}");
    let said = bench.refusal("plan llama-3.2-1b --tp 16");
    assert!(said.contains("8 key-value heads / tp 16 = 0 and 8 over"), "{said}");
    let said = bench.refusal("plan mixtral-8x7b --tp 2 --ep 2 --etp 2");
    assert!(
        said.contains("with --ep transformers keeps experts whole") || said.contains("no multiple of etp"),
        "{said}"
    );
}

#[test]
fn experts_one_after_the_other() {
    let bench = Bench::new();
    let plan = |options: &str| {
        answer_json(
            &bench,
            &format!("plan mixtral-8x7b --precision bf16 --recompute full --batch 1 --seq 64 {options}"),
        )
    };
    let experts = |options: &str| text(&plan(options)["assumptions"]["experts"]).to_owned();
    assert!(experts("").starts_with("grouped_mm, transformers' default"));
    assert!(experts("--experts eager").contains("evenly"));
    assert!(experts("--experts eager --expert-imbalance 1.5").contains("1.5 times the mean"));
    let said = bench.refusal("plan mixtral-8x7b --expert-imbalance 1.5");
    assert!(said.contains("--experts eager"), "grouped_mm does not feel it: {said}");
    let said = bench.refusal("plan mixtral-8x7b --experts eager --expert-imbalance 0.5");
    assert!(said.contains("0.5 times the mean"), "{said}");
    let said = bench.refusal("plan qwen3-30b-a3b --experts eager --gradient-accumulation-steps 64");
    assert!(said.contains("128 experts in 3072 blocks"), "{said}");
}

#[test]
fn a_sequence_beyond_the_models_limit_is_planned_and_said() {
    let plan = answer_json(&bench(), "plan config.json --seq-len 256");
    assert!(text(&plan["assumptions"]["batch"]).contains("longer than the model's limit of 128"));
    let said = Bench::new().refusal("plan gpt2 --seq-len 1025");
    assert!(said.contains("1024 learned positions"), "{said}");
}

/// The answer with arguments that have blanks in them.
fn with_more(bench: &Bench, arguments: &str, more: &[&str]) -> String {
    let ran = bench.command(arguments).args(more).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// `--candidates common` tries what `fit` tries, says what it left out, and gives way to a candidate of the same name.
#[test]
fn the_usual_candidates() {
    let bench = bench();
    // objects of serde_json are sorted by name, so the order is read off the table
    let names = |more: &[&str]| -> Vec<String> {
        let table = with_more(&bench, "plan config.json --batch 2 --candidates common", more);
        let rows = table.lines().skip_while(|line| !line.starts_with("baseline")).skip(1);
        let rows = rows.take_while(|line| !line.starts_with("without room: "));
        rows.map_while(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
    };
    let usual = names(&[]);
    let tried = answer_json(&bench, "fit config.json --batch 2 --gpu 80GiB");
    let tried = tried["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap());
    assert_eq!(usual, tried.filter(|name| *name != "as given").collect::<Vec<_>>());
    assert!(["recompute", "fused", "accumulate", "LoRA"].iter().all(|name| usual.iter().any(|n| n == name)));
    let own = names(&["--candidate", "LoRA: --lora r=4"]);
    assert_eq!((own.len(), own.last().unwrap().as_str()), (usual.len(), "LoRA"));
    let experts = answer_json(&bench, "plan mixtral-8x7b --candidates common");
    assert_eq!(experts["left_out"][0]["name"], "QLoRA");
}

/// A time only where the card's rates are known, for the types that are multiplied; what a checkpoint adds is what it
/// computes again.
#[test]
fn costs_are_kept_apart_from_savings() {
    let bench = bench();
    let with = |options: &str| -> Value {
        let candidate = ["--candidate", "recompute: --recompute full"];
        let answer = with_more(&bench, &format!("plan config.json --format json {options}"), &candidate);
        serde_json::from_str(&answer).unwrap()
    };
    let plain = with("");
    assert!(plain["costs"]["theoretical"].is_null());
    let added = &plain["candidates"]["recompute"]["added"];
    assert_eq!(added["flops"], added["recomputed_flops"]);
    assert!(added["flops"].as_u64().unwrap() > 0 && added["theoretical_seconds"].is_null());
    let phases = plain["costs"]["phases"].as_array().unwrap();
    let flops = phases.iter().map(|phase| phase["flops"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(plain["costs"]["flops"].as_u64().unwrap(), flops);
    let timed = with("--gpu a100-80gb");
    assert!(timed["costs"]["theoretical"]["step_seconds"].as_f64().unwrap() > 0.0);
    assert!(timed["candidates"]["recompute"]["added"]["theoretical_seconds"].as_f64().unwrap() > 0.0);
    assert!(with("--gpu t4")["costs"]["theoretical"].is_null(), "a T4 has no rate for bf16");
    assert!(!with("--gpu t4 --precision fp16")["costs"]["theoretical"].is_null());
}

/// How numbers came about, as people read it.
#[test]
fn what_is_behind_a_name() {
    assert_snapshot!(bench().answer("plan config.json --explain activations --top 2"), @"
    activations: 872.50 KiB of the 4.90 MiB peak in backward of the steady step

    64.00 KiB  model.layers.*.input_layernorm: mul.Tensor
      size   2 of [1, 128, 64] × 4 B (fp32) = 32,768 B, 32.00 KiB each
      why    autograd keeps it for the backward of `mul.Tensor` in
             model.layers.*.input_layernorm
      from   mul.Tensor in forward, in model.layers.*.input_layernorm
      until  sum.dim_IntList in backward, in model.layers.*.input_layernorm

    64.00 KiB  model.layers.*.mlp.act_fn: silu
      size   2 of [1, 128, 128] × 2 B (bf16) = 32,768 B, 32.00 KiB each
      why    autograd keeps it for the backward of `mul.Tensor` in
             model.layers.*.mlp
      from   silu in forward, in model.layers.*.mlp.act_fn
      until  mul.Tensor in backward, in model.layers.*.mlp

    and 26 more, 744.50 KiB
    ");
    assert_snapshot!(bench().answer("plan config.json --explain kernel --attention eager --format markdown"), @r"
    **kernel**: 16.75 MiB in the steady step, of storages that need not be there at once

    | what | together | size | why | from | until |
    | --- | ---: | --- | --- | --- | --- |
    | step: cuBLAS workspace | 16.25 MiB | 2 of \[8519680\] × 1 B (byte) = 8,519,680 B, 8.13 MiB each | 32 MiB on Hopper and Blackwell, else 8.125 MiB, for each thread that multiplies: the loop's and autograd's (aten/src/ATen/cuda/CublasHandlePool.cpp) | before the step | it stays |
    | model.layers.\*.self_attn: \_softmax_backward_data (kernel) | 512.00 KiB | 2 of \[65536\] × 4 B (fp32) = 262,144 B, 256.00 KiB each | inside the kernel: the product of gradient and output, in the wider of their types (aten/src/ATen/native/cuda/SoftMax.cu) | \_softmax_backward_data in backward, in model.layers.\*.self_attn | \_softmax_backward_data in backward, in model.layers.\*.self_attn |
    ");
    assert_snapshot!(bench().answer("plan config.json --explain model.norm.weight.exp_avg --format csv"), @r#"
    name,category,detail,shape,dtype,requested_bytes,each_bytes,count,bytes,op,why,source,from,until
    model.norm.weight.exp_avg,optimizer_state,,64,fp32,256,512,1,512,zeros_like,"made by the optimizer's first step, kept from then on",,before the step,it stays
    model.norm.weight.exp_avg_sq,optimizer_state,,64,fp32,256,512,1,512,zeros_like,"made by the optimizer's first step, kept from then on",,before the step,it stays
    "#);
    assert_snapshot!(bench().refusal("plan config.json --explain gradiants"), @"
    error: `--explain`: nothing of this step is named `gradiants`
      help: did you mean `gradients`?
    ");
    let json = answer_json(&bench(), "plan config.json --explain model.layers.1.mlp.act_fn");
    assert_eq!(
        (&json["step"], &json["at_peak"], &json["bytes"]),
        (&json!("steady"), &json!(false), &json!(65_536))
    );
    let silu = &json["parts"][0];
    assert_eq!(silu["shape"], json!([1, 128, 128]));
    assert_eq!(
        silu["from"],
        json!({"phase": "forward", "module": "model.layers.*.mlp.act_fn", "op": "silu"})
    );
    let refusal = bench().refusal("plan config.json --explain batch --candidates common");
    assert!(refusal.contains("--explain"), "{refusal}");
}

//! `fit` from outside: what it answers in every format, that what it answers is so, and what it refuses.

use crate::support::Bench;
use insta::assert_snapshot;
use serde_json::{Value, json};

/// A model small enough that every figure can be followed, in `config.json`.
fn bench() -> Bench {
    let config = json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": false
    });
    Bench::new().file("config.json", config.to_string())
}

fn fit_json(bench: &Bench, arguments: &str, candidates: &[&str]) -> Value {
    let mut command = bench.command(&format!("fit {arguments} --format json"));
    for candidate in candidates {
        command.args(["--candidate", candidate]);
    }
    let out = command.output().unwrap();
    assert!(out.stderr.is_empty(), "{arguments}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn names(fit: &Value) -> Vec<&str> {
    fit["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

fn row<'a>(fit: &'a Value, name: &str) -> &'a Value {
    fit["rows"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap()
}

/// An answer without what `plan` says too: what is assumed and what is not counted.
fn own(out: &str) -> String {
    let blocks =
        out.split("\n\n").filter(|block| !block.starts_with("model  ") && !block.starts_with("| assumed"));
    let text = blocks.collect::<Vec<_>>().join("\n\n");
    let end = text.to_lowercase().find("\nnot counted: ").unwrap();
    text[..end].to_owned()
}

#[test]
fn a_table() {
    assert_snapshot!(own(&bench().answer("fit config.json --gpu 336MiB --batch 8")), @r"
    does not fit: 2.10 MiB too much for 336MiB (52.00 MiB reserved on a larger card
    and 286.10 MiB of CUDA context, of 336.00 MiB); it runs out in backward of the
    first step: 20.00 MiB asked for with 19.90 MiB left, though no more than 37.26
    MiB is ever allocated: 6.32 MiB of what is reserved is free
    it fits with recompute (1.90 MiB to spare, on the edge), accumulate (1.90 MiB to
    spare, on the edge), offload-parameters (1.90 MiB to spare, on the edge),
    fused-loss (17.90 MiB to spare, on the edge), bf16 (1.90 MiB to spare, on the
    edge) and by layer (1.90 MiB to spare, on the edge)
      peakledger plan config.json --micro-batch-size 8 --gpu 336MiB \
        --recompute full
    largest micro-batch at 128 tokens: 6 sequences; 7 do not fit, of more some may
    again, up to 13: what the allocator reserves does not grow evenly
    longest sequence at a micro-batch of 8: 96 tokens; 97 do not fit, of more some
    may again, up to 128: what the allocator reserves does not grow evenly
    config.json: 202,048 parameters

                        fits                       max batch  max tokens
    as given            no    2.10 MiB too much            6          96
    recompute           edge  1.90 MiB to spare           13     all 128
    fused               no    2.10 MiB too much            6          96
    accumulate          edge  1.90 MiB to spare            5     all 128
    offload             no    4.10 MiB too much            6          97
    offload-optimizer   no    104.75 KiB too much          7         124
    offload-parameters  edge  1.90 MiB to spare            8     all 128
    fused-loss          edge  17.90 MiB to spare          25     all 128
    LoRA                no    104.75 KiB too much          7         123
    QLoRA               no    104.75 KiB too much          6         102
    bf16                edge  1.90 MiB to spare            9     all 128
    adamw-8bit          no    104.75 KiB too much          7         119
    adafactor           no    104.75 KiB too much          7         125
    by layer            edge  1.90 MiB to spare           10     all 128
    without room: device peak, theoretical cost (COLUMNS=99 shows them)

    these keep the training as it is, up to rounding
    recompute           --recompute full
    fused               --optimizer-impl fused
    accumulate          --micro-batch-size 4 --gradient-accumulation-steps 2
    offload             --offload activations
    offload-optimizer   --offload optimizer
    offload-parameters  --offload parameters
    fused-loss          --fused-loss
    by layer            --recompute layers:0

    these change the training itself, not only its memory
    LoRA                --lora r=16,targets=all-linear
    QLoRA               --lora r=16,targets=all-linear --quantize nf4
    bf16                --precision bf16
    adamw-8bit          --optimizer adamw-8bit
    adafactor           --optimizer adafactor

    each largest is where one more does not fit; at it next to nothing is to spare,
    also for what is not counted, and at an edge less than a CUDA context may take
    ");
}

#[test]
fn a_table_where_it_fits_on_forty_columns() {
    let out = bench().env("COLUMNS", "40").answer("fit config.json --gpu 1GiB --ascii --lora r=8");
    assert!(out.is_ascii() && out.lines().all(|line| line.chars().count() <= 40), "{out}");
    assert_snapshot!(own(&out), @"
    fits: 713.90 MiB to spare on 1GiB (24.00
    MiB reserved and 286.10 MiB of CUDA
    context, of 1.00 GiB)
    largest micro-batch at 128 tokens: 315
    sequences; 316 do not fit, of more some
    may again, up to 334: what the allocator
    reserves does not grow evenly
    longest sequence at a micro-batch of 1:
    128 tokens, the model's limit
    config.json: 218,432 parameters

                   fits max batch max tokens
    as given       yes        315    all 128
    recompute      yes        360    all 128
    fused          yes        315    all 128
    offload        yes        341    all 128
    offlo...imizer yes        315    all 128
    offlo...meters yes        315    all 128
    fused-loss     yes        768    all 128
    QLoRA          yes        256    all 128
    bf16           yes        245    all 128
    adamw-8bit     yes        315    all 128
    adafactor      yes        315    all 128

    these keep the training as it is, up to
    rounding
    recompute           --recompute full
    fused               --optimizer-impl
                        fused
    offload             --offload
                        activations
    offload-optimizer   --offload optimizer
    offload-parameters  --offload parameters
    fused-loss          --fused-loss

    these change the training itself, not
    only its memory
    QLoRA               --quantize nf4
    bf16                --precision bf16
    adamw-8bit          --optimizer
                        adamw-8bit
    adafactor           --optimizer
                        adafactor

    each largest is where one more does not
    fit; at it next to nothing is to spare,
    also for what is not counted, and at an
    edge less than a CUDA context may take
    ");
}

#[test]
fn a_model_of_the_catalogue() {
    assert_snapshot!(Bench::new().answer("fit llama-3.1-8b --gpu rtx-4090 --format csv"), @r#"
    name,options,same_training,device_peak_bytes,fits,on_the_edge,headroom_bytes,largest_micro_batch,micro_batch_limited_by,largest_seq_len,seq_len_limited_by,added_theoretical_seconds,pareto,offload,worst_rank
    as given,,true,160622298112,false,false,-155134829312,,card,,card,,false,,0
    recompute,--recompute full,true,160622298112,false,false,-141553672960,,card,,card,0.228319006052,false,,0
    fused,--optimizer-impl fused,true,130474323456,false,false,-126896677632,,card,,card,-0.414259508826,false,,0
    offload,--offload activations,true,160622298112,false,false,-143162188544,,card,,card,1.929337898834,false,reject,0
    offload-optimizer,--offload optimizer,true,66232084480,false,false,-64611263232,,card,,card,1.401611198774,false,tune,0
    offload-parameters,--offload parameters,true,38313748480,false,false,-19002401536,,card,256,card,2.347254076762,false,tune,0
    fused-loss,--fused-loss,true,160622298112,false,false,-157060014848,,card,,card,0.090716357087,false,,0
    LoRA,"--lora r=16,targets=all-linear",false,65088735232,false,false,-41202852608,,card,,card,-0.766996378884,false,,0
    QLoRA,"--lora r=16,targets=all-linear --quantize nf4",false,32289392640,false,false,-8564876032,,card,1329,card,-0.664739413805,false,,0
    half-weights,--weights-dtype bf16,false,80319685632,false,false,-59643110144,,card,,card,-0.448273188572,false,,0
    bf16,--precision bf16,false,80319685632,false,false,-59643110144,,card,,card,-0.448273188572,false,,0
    adamw-8bit,--optimizer adamw-8bit,false,82543612928,false,false,-71152280320,,card,,card,-0.509857857016,false,,0
    adafactor,--optimizer adafactor,false,66440261120,false,false,-66727289600,,card,,card,-0.159121523764,false,,0
    recompute + fused,--recompute full --optimizer-impl fused,true,128534957568,false,false,-112608781056,,card,,card,-0.185940502773,false,,0
    recompute + fused-loss,--recompute full --fused-loss,true,160622298112,false,false,-141408969472,,card,,card,0.319035363139,false,,0
    recompute + offload,--recompute full --offload activations,true,160622298112,false,false,-140647703296,,card,,card,0.29644341799,false,reject,0
    recompute + offload-optimizer,--recompute full --offload optimizer,true,64292718592,false,false,-50826683136,,card,,card,1.629930204826,false,tune,0
    fused-loss + offload-optimizer,--fused-loss --offload optimizer,true,66299383296,false,false,-64367993600,,card,,card,1.492327555861,false,tune,0
    recompute + LoRA,"--recompute full --lora r=16,targets=all-linear",false,37953546240,false,false,-14954898176,,card,,card,-0.441021499518,false,,0
    recompute + QLoRA,"--recompute full --lora r=16,targets=all-linear --quantize nf4",false,13962242048,true,false,9288178944,2,card,6879,card,-0.307469534057,true,,0
    recompute + half-weights,--recompute full --weights-dtype bf16,false,80319685632,false,false,-56635794176,,card,,card,-0.27168445198,false,,0
    half-weights + LoRA,"--weights-dtype bf16 --lora r=16,targets=all-linear",false,34068178944,false,false,-10280346368,,card,877,card,-0.838328682122,true,,0
    recompute + bf16,--recompute full --precision bf16,false,80319685632,false,false,-56635794176,,card,,card,-0.27168445198,false,,0
    recompute + adamw-8bit,--recompute full --optimizer adamw-8bit,false,80604247040,false,false,-60010111744,,card,,card,-0.281538850964,false,,0
    recompute + adafactor,--recompute full --optimizer adafactor,false,66440261120,false,false,-52942709504,,card,,card,0.069197482288,false,,0
    LoRA + bf16,"--lora r=16,targets=all-linear --precision bf16",false,39099639808,false,false,-16292881152,,card,731,card,-0.782110841322,false,,0
    QLoRA + bf16,"--lora r=16,targets=all-linear --quantize nf4 --precision bf16",false,29066979328,false,false,-7075898112,,card,1592,card,-0.764255922211,true,,0
    bf16 + fused,--precision bf16 --optimizer-impl fused,false,64581258752,false,false,-46267474688,,card,,card,-0.655402942985,false,,0
    bf16 + adamw-8bit,--precision bf16 --optimizer adamw-8bit,false,48771593216,false,false,-27000939264,,card,,card,-0.687269059048,false,,0
    bf16 + adafactor,--precision bf16 --optimizer adafactor,false,33228667392,false,false,-19170173696,,card,,card,-0.527833950453,false,,0
    recompute + half-weights + LoRA,"--recompute full --weights-dtype bf16 --lora r=16,targets=all-linear",false,20304431104,true,false,3107872000,2,card,4345,card,-0.556327946756,true,,0
    recompute + LoRA + bf16,"--recompute full --lora r=16,targets=all-linear --precision bf16",false,20304431104,true,false,3130940672,1,card,4312,card,-0.479202662778,true,,0
    recompute + bf16 + fused,--recompute full --precision bf16 --optimizer-impl fused,false,64276090368,false,false,-40965874432,,card,,card,-0.478814206392,false,,0
    recompute + bf16 + adamw-8bit,--recompute full --precision bf16 --optimizer adamw-8bit,false,48466424832,false,false,-24599700224,,card,,card,-0.510680322456,false,,0
    recompute + bf16 + adafactor,--recompute full --precision bf16 --optimizer adafactor,false,33228667392,false,false,-10125157120,,card,,card,-0.351245213861,false,,0
    "#);
}

#[test]
fn markdown() {
    assert_snapshot!(own(&bench().answer("fit config.json --gpu 334MiB --batch 6 --format markdown")), @"
    **does not fit: 2.10 MiB too much for 334MiB (50.00 MiB reserved on a larger card and 286.10 MiB of CUDA context, of 334.00 MiB); it runs out in loss of the steady step: 20.00 MiB asked for with 19.90 MiB left, though no more than 33.48 MiB is ever allocated: 2.67 MiB of what is reserved is free**

    it fits with recompute (1.90 MiB to spare, on the edge), fused-loss (17.90 MiB to spare, on the edge), bf16 (1.90 MiB to spare, on the edge) and by layer (1.90 MiB to spare, on the edge)

        peakledger plan config.json --micro-batch-size 6 --gpu 334MiB --recompute full

    - largest micro-batch at 128 tokens: 3 sequences; 4 do not fit, of more some may again, up to 12: what the allocator reserves does not grow evenly
    - longest sequence at a micro-batch of 6: 64 tokens; 65 do not fit, of more some may again, up to 128: what the allocator reserves does not grow evenly

    | step | options | training | device peak | fits | max batch | max tokens | theoretical cost | pareto |
    | --- | --- | --- | ---: | --- | ---: | ---: | ---: | --- |
    | as given |  | the same | 32.66 MiB | no: 2.10 MiB too much | 3 | 64 |  |  |
    | recompute | --recompute full | the same | 28.35 MiB | edge: 1.90 MiB to spare | 13 | all 128 |  |  |
    | fused | --optimizer-impl fused | the same | 32.67 MiB | no: 2.10 MiB too much | 3 | 64 |  |  |
    | accumulate | --micro-batch-size 3 --gradient-accumulation-steps 2 | the same | 26.53 MiB | no: 104.75 KiB too much | 2 | 109 |  |  |
    | offload | --offload activations | the same | 30.32 MiB | no: 4.10 MiB too much | 3 | 72 |  |  |
    | offload-optimizer | --offload optimizer | the same | 31.18 MiB | no: 104.75 KiB too much | 5 | 117 |  |  |
    | offload-parameters | --offload parameters | the same | 30.83 MiB | no: 104.75 KiB too much | 5 | 124 |  |  |
    | fused-loss | --fused-loss | the same | 24.66 MiB | edge: 17.90 MiB to spare | 21 | all 128 |  |  |
    | LoRA | --lora r=16,targets=all-linear | another | 30.82 MiB | no: 104.75 KiB too much | 5 | 124 |  |  |
    | QLoRA | --lora r=16,targets=all-linear --quantize nf4 | another | 31.40 MiB | no: 104.75 KiB too much | 3 | 110 |  |  |
    | bf16 | --precision bf16 | another | 30.20 MiB | edge: 1.90 MiB to spare | 6 | all 128 |  |  |
    | adamw-8bit | --optimizer adamw-8bit | another | 31.56 MiB | no: 104.75 KiB too much | 5 | 107 |  |  |
    | adafactor | --optimizer adafactor | another | 31.14 MiB | no: 104.75 KiB too much | 5 | 116 |  |  |
    | by layer | --recompute layers:0 | the same | 30.51 MiB | edge: 1.90 MiB to spare | 6 | all 128 |  |  |

    each largest is where one more does not fit; at it next to nothing is to spare, also for what is not counted, and at an edge less than a CUDA context may take
    ");
}

#[test]
fn the_fields_of_json() {
    let mut fit = fit_json(&bench(), "config.json --gpu t4 --batch 2 --gradient-accumulation-steps 3", &[]);
    assert!(fit.as_object_mut().unwrap().remove("not_counted").unwrap().is_array());
    assert_snapshot!(serde_json::to_string_pretty(&fit).unwrap().split("    {\n").take(2).collect::<String>(), @r#"
    {
      "capacity_bytes": 15637086208,
      "caveats": [
        "Tesla T4 has no bf16 (it is sm75, and bf16 begins with sm80): torch emulates it there, slowly; --precision fp16-mixed plans what is run instead"
      ],
      "fewest_gpus": null,
      "fewest_gpus_in_whole_nodes": null,
      "gpu": "t4",
      "gradient_accumulation_steps": 3,
      "left_out": [],
      "micro_batch_size": 2,
      "model": "config.json",
      "outside_bytes": 147718144,
      "parameters": 202048,
      "rows": [
          "added_theoretical_seconds": null,
          "command": "peakledger plan config.json --micro-batch-size 2 --gradient-accumulation-steps 3 --gpu t4",
          "device_peak_bytes": 26707968,
          "fits": true,
          "headroom_bytes": 15457910784,
          "largest_micro_batch": 4744,
          "largest_seq_len": 128,
          "micro_batch_limited_by": "card",
          "name": "as given",
          "offload": null,
          "on_the_edge": false,
          "options": "",
          "pareto": false,
          "same_training": true,
          "seq_len_limited_by": "model",
          "seq_len_step": 1,
          "worst_rank": 0
        },
    "#);
    let rows = ["as given", "recompute", "fused", "accumulate"].into_iter().chain(ELSEWHERE);
    let rows = rows.chain(["LoRA", "QLoRA", "bf16", "adamw-8bit", "adafactor"]);
    assert_eq!(names(&fit), rows.collect::<Vec<_>>());
    let training = |name: &str| row(&fit, name)["same_training"].as_bool().unwrap();
    assert!(["as given", "recompute", "fused", "accumulate"].into_iter().chain(ELSEWHERE).all(training));
    assert!(!["LoRA", "QLoRA", "bf16", "adamw-8bit", "adafactor"].into_iter().any(training));
    assert!(fit["left_out"].as_array().unwrap().is_empty());
    let options = &row(&fit, "accumulate")["options"];
    assert_eq!(options, "--micro-batch-size 1 --gradient-accumulation-steps 6");
}

/// Each answer is the plan's: the largest fits, and one more does not.
#[test]
fn what_is_answered_is_planned() {
    let bench = bench();
    for given in [
        "--gpu 336MiB --batch 5 --seq 60",
        "--gpu 310MiB --gradient-accumulation-steps 4 --precision bf16",
        "--gpu 340MiB --pp 2 --gradient-accumulation-steps 6 --nccl-bytes-per-group 1MiB",
        // ranks whose parts differ reserve more than another, and more in later micro-batches
        "--gpu 336MiB --gpus 4 --zero 1 --zero-reduce-bucket-size 100000 --gradient-accumulation-steps 5 \
         --nccl-bytes-per-group 1MiB",
    ] {
        let fit = fit_json(&bench, &format!("config.json {given}"), &["eager: --attention eager"]);
        let rows = fit["rows"].as_array().unwrap();
        assert!(!rows.is_empty());
        for row in rows {
            let fits = |more: &str| {
                let changed = row["options"].as_str().unwrap();
                let candidate = format!("it: {changed} {more}");
                let mut command = bench.command(&format!("plan config.json {given} --format json"));
                let out = command.args(["--candidate", &candidate]).output().unwrap();
                let plan: Value = serde_json::from_slice(&out.stdout).unwrap();
                plan["candidates"]["it"]["verdict"].clone()
            };
            let verdict = fits("");
            assert_eq!(
                (&verdict["fits"], &verdict["headroom_bytes"]),
                (&row["fits"], &row["headroom_bytes"])
            );
            for (option, key, limit) in [
                ("--micro-batch-size", "largest_micro_batch", "micro_batch_limited_by"),
                ("--seq-len", "largest_seq_len", "seq_len_limited_by"),
            ] {
                let largest = row[key].as_u64().unwrap_or(0);
                if row["options"].as_str().unwrap().contains(option) {
                    continue; // it cannot be given twice
                }
                assert!(largest == 0 || fits(&format!("{option} {largest}"))["fits"] == true, "{row}");
                if row[limit] == "card" {
                    assert_eq!(fits(&format!("{option} {}", largest + 1))["fits"], false, "{row}");
                } else {
                    assert_eq!((&row[limit], largest), (&json!("model"), 128), "{row}");
                }
            }
        }
    }
}

/// What is said of a step that does not fit.
#[test]
fn the_way_out() {
    let said = |arguments: &str, candidates: &[&str]| {
        let bench = bench().env("COLUMNS", "200");
        let mut command = bench.command(&format!("fit config.json {arguments}"));
        for candidate in candidates {
            command.args(["--candidate", candidate]);
        }
        let out = String::from_utf8(command.output().unwrap().stdout).unwrap();
        out[..out.find("config.json: ").unwrap()].to_owned()
    };
    assert_snapshot!(said("--gpu 336MiB --batch 8", &["short: --seq-len 16"]), @"
    does not fit: 2.10 MiB too much for 336MiB (52.00 MiB reserved on a larger card and 286.10 MiB of CUDA context, of 336.00 MiB); it runs out in backward of the first step: 20.00 MiB asked for with
    19.90 MiB left, though no more than 37.26 MiB is ever allocated: 6.32 MiB of what is reserved is free
    it fits with recompute (1.90 MiB to spare, on the edge), accumulate (1.90 MiB to spare, on the edge), offload-parameters (1.90 MiB to spare, on the edge), fused-loss (17.90 MiB to spare, on the edge),
    bf16 (1.90 MiB to spare, on the edge), by layer (1.90 MiB to spare, on the edge) and short (23.90 MiB to spare, on the edge)
      peakledger plan config.json --micro-batch-size 8 --gpu 336MiB --recompute full
    largest micro-batch at 128 tokens: 6 sequences; 7 do not fit, of more some may again, up to 13: what the allocator reserves does not grow evenly
    longest sequence at a micro-batch of 8: 96 tokens; 97 do not fit, of more some may again, up to 128: what the allocator reserves does not grow evenly
    ");
    assert_snapshot!(said("--gpu 330MiB --batch 8", &[]), @"
    does not fit: 8.10 MiB too much for 330MiB (52.00 MiB reserved on a larger card and 286.10 MiB of CUDA context, of 330.00 MiB); it runs out in backward of the first step: 20.00 MiB asked for with
    13.90 MiB left, though no more than 37.26 MiB is ever allocated: 6.32 MiB of what is reserved is free
    it fits with fused-loss (11.90 MiB to spare, on the edge)
      peakledger plan config.json --micro-batch-size 8 --gpu 330MiB --fused-loss
    largest micro-batch at 128 tokens: 2 sequences; 3 do not fit, of more some may again, up to 10: what the allocator reserves does not grow evenly
    longest sequence at a micro-batch of 8: 40 tokens; 41 do not fit, of more some may again, up to 128: what the allocator reserves does not grow evenly
    ");
    assert_snapshot!(said("--gpu 330MiB --batch 8", &["shorter: --seq-len 8 --precision bf16"]), @"
    does not fit: 8.10 MiB too much for 330MiB (52.00 MiB reserved on a larger card and 286.10 MiB of CUDA context, of 330.00 MiB); it runs out in backward of the first step: 20.00 MiB asked for with
    13.90 MiB left, though no more than 37.26 MiB is ever allocated: 6.32 MiB of what is reserved is free
    it fits with fused-loss (11.90 MiB to spare, on the edge) and shorter (19.90 MiB to spare, on the edge)
      peakledger plan config.json --micro-batch-size 8 --gpu 330MiB --fused-loss
    largest micro-batch at 128 tokens: 2 sequences; 3 do not fit, of more some may again, up to 10: what the allocator reserves does not grow evenly
    longest sequence at a micro-batch of 8: 40 tokens; 41 do not fit, of more some may again, up to 128: what the allocator reserves does not grow evenly
    ");
    assert_snapshot!(said("--gpu 100MiB", &[]), @"
    does not fit: 212.10 MiB too much for 100MiB (26.00 MiB reserved on a larger card and 286.10 MiB of CUDA context, of 100.00 MiB); it runs out in load of the first step: 2.00 MiB asked for with 0 B
    left
    no change that was tried makes it fit; the closest is offload-optimizer (210.10 MiB too much)
      peakledger plan config.json --gpu 100MiB --offload optimizer
    largest micro-batch at 128 tokens: none, not even 1 sequence
    longest sequence at a micro-batch of 1: none, not even 1 token
    ");
    assert_snapshot!(said("--gpu 1TiB", &[]), @"
    fits: 1023.70 GiB to spare on 1TiB (26.00 MiB reserved and 286.10 MiB of CUDA context, of 1.00 TiB)
    largest micro-batch at 128 tokens: 65536 sequences, and more is not looked for
    longest sequence at a micro-batch of 1: 128 tokens, the model's limit
    ");
}

/// What every step may move to the host, or not make at all.
const ELSEWHERE: [&str; 4] = ["offload", "offload-optimizer", "offload-parameters", "fused-loss"];

/// Of the changes that make a step fit, those come first that cost the least time by the card's peak rates.
#[test]
fn the_cheapest_way_out_comes_first() {
    let fit = fit_json(&Bench::new(), "qwen2.5-1.5b --gpu rtx-4090 --seq 4096", &[]);
    let cost = |name: &str| row(&fit, name)["added_theoretical_seconds"].as_f64().unwrap();
    assert!(cost("recompute") > 0.0 && cost("fused") < 0.0);
    assert!(cost("offload") > cost("recompute"), "the host link is slow");
    let table = Bench::new().answer("fit qwen2.5-1.5b --gpu rtx-4090 --seq 4096");
    let line: String =
        table.lines().skip(2).take_while(|line| !line.starts_with("largest")).collect::<Vec<_>>().join(" ");
    let named = line.split("it fits with ").nth(1).unwrap().replace(" and ", ", ");
    let named: Vec<&str> = named.split("), ").filter(|said| said.contains(" (")).collect();
    // those on the edge come last
    assert!(named.is_sorted_by_key(|said| said.contains("on the edge")), "{line}");
    let surely = named.iter().filter(|said| !said.contains("on the edge"));
    let costs: Vec<f64> = surely.filter_map(|said| said.split(" (").next()).map(cost).collect();
    assert!(costs.len() > 2 && costs.is_sorted(), "{costs:?} {line}");
    let no_rates = fit_json(&Bench::new(), "qwen2.5-1.5b --gpu 24GiB --seq 4096", &[]);
    assert!(row(&no_rates, "recompute")["added_theoretical_seconds"].is_null());
}

#[test]
fn only_what_is_not_done_already_is_tried() {
    let bench = bench();
    for (options, tried) in [
        ("", &["recompute", "fused", "LoRA", "QLoRA", "bf16", "adamw-8bit", "adafactor"][..]),
        ("--gradient-checkpointing --precision fp16", &["fused", "LoRA", "QLoRA", "adamw-8bit", "adafactor"]),
        (
            "--weights-dtype bf16 --lora r=4 --quantize nf4",
            &["recompute", "fused", "adamw-8bit", "adafactor"],
        ),
        ("--optimizer adafactor --lora r=4 --batch 9", &["recompute", "accumulate", "QLoRA", "bf16"]),
        (
            "--optimizer sgd --momentum 0.9 --optimizer-impl fused",
            &["recompute", "LoRA", "QLoRA", "bf16", "adafactor"],
        ),
        ("--optimizer adamw-8bit", &["recompute", "LoRA", "QLoRA", "bf16", "adafactor"]),
    ] {
        let fit = fit_json(&bench, &format!("config.json --gpu 1GiB {options}"), &[]);
        let same_place = tried.iter().filter(|name| !["recompute", "fused", "accumulate"].contains(name));
        let here = tried.len() - same_place.count();
        let mut elsewhere = ELSEWHERE.to_vec();
        if options.contains("8bit") {
            elsewhere.retain(|name| !["offload-optimizer", "offload-parameters"].contains(name));
        }
        let tried: Vec<&str> = [&tried[..here], &elsewhere, &tried[here..]].concat();
        assert_eq!(names(&fit)[1..], tried, "{options}");
        assert_eq!(fit["left_out"], json!([]), "{options}");
    }
    // 65537 is a prime: only as many micro-batches of 1 are as many sequences
    let fit = fit_json(&bench, "config.json --gpu 1GiB --seq 1 --batch 65537", &[]);
    assert!(!names(&fit).contains(&"accumulate"));
    let left_out = &fit["left_out"][0];
    assert_eq!((&left_out["name"], fit["left_out"].as_array().unwrap().len()), (&json!("accumulate"), 1));
    assert!(left_out["cause"].as_str().unwrap().contains("65537 micro-batches"), "{left_out}");
}

/// On several GPUs what shares a step out is tried too. Ranks of FSDP2 or of a tensor parallel group train as those of DDP do, on
/// as many sequences.
#[test]
fn on_several_gpus_ranks_may_share_the_step_out() {
    let fit = fit_json(&bench(), "config.json --gpu t4 --gpus 4", &[]);
    let options = |name| row(&fit, name)["options"].as_str().unwrap();
    assert_eq!(options("fsdp"), "--fsdp full_shard");
    assert_eq!(options("zero-2"), "--zero 2");
    assert_eq!(options("zero-3"), "--zero 3");
    let training = |name| row(&fit, name)["same_training"].as_bool().unwrap();
    assert!(training("fsdp"));
    assert!(!training("zero-2"), "its gradients are in bf16");
    // 4 ranks cannot have whole ones of 2 key-value heads
    let left_out = fit["left_out"].as_array().unwrap().iter().find(|one| one["name"] == "tp").unwrap();
    assert!(left_out["cause"].as_str().unwrap().starts_with("2 key-value heads / tp 4"), "{left_out}");
    let of_2 = fit_json(&bench(), "config.json --gpu t4 --dp 2", &[]);
    assert_eq!(row(&of_2, "tp")["options"], "--tp 2 --dp 1 --gradient-accumulation-steps 2");
    assert_eq!(row(&of_2, "tp")["same_training"], true);
}

#[test]
fn candidates_are_rows_and_take_the_place_of_a_usual_change() {
    let candidates = ["fused: --optimizer-impl fused --recompute full", "short: --seq-len 16"];
    let fit = fit_json(&bench(), "config.json --gpu 336MiB", &candidates);
    let rows = ["as given", "recompute"].into_iter().chain(ELSEWHERE);
    let rows = rows.chain(["LoRA", "QLoRA", "bf16", "adamw-8bit", "adafactor", "fused", "short"]);
    assert_eq!(names(&fit), rows.collect::<Vec<_>>());
    assert_eq!(row(&fit, "fused")["options"], "--optimizer-impl fused --recompute full");
    assert_eq!(
        (&row(&fit, "fused")["same_training"], &row(&fit, "short")["same_training"]),
        (&json!(true), &json!(false))
    );
    let limit = &row(&fit, "short")["largest_seq_len"];
    assert_eq!(limit, &row(&fit, "as given")["largest_seq_len"], "the length is what is looked for");
}

#[test]
fn exit_codes_and_files() {
    let bench = bench();
    let code = |arguments: &str| bench.run(&format!("fit config.json {arguments}")).code;
    assert_eq!(code("--gpu 290MiB --batch 8"), Some(0));
    assert_eq!(code("--gpu 290MiB --batch 8 --exit-code"), Some(1));
    assert_eq!(code("--gpu 1GiB --exit-code"), Some(0));
    assert_eq!(bench.answer("fit config.json --gpu 1GiB -o fit.json"), "");
    assert!(serde_json::from_str::<Value>(&bench.read("fit.json")).unwrap()["rows"].is_array());
    assert!(bench.refusal("fit config.json --gpu 1GiB -o fit.json").contains("--force"));
    bench.answer("fit config.json --gpu 1GiB -o fit.json --force");
    assert!(bench.refusal("fit config.json --gpu 1GiB -o config.json --force").contains("one of the inputs"));
}

#[test]
fn what_is_refused() {
    let bench = bench();
    for (arguments, candidate, says) in [
        (
            "",
            None,
            "`--gpu`: what fits depends on the card, and none is named\n  help: add `--gpu a100-80gb`",
        ),
        ("--gpu h10", None, "`h10` is not known"),
        ("--gpu 0GiB", None, "`0GiB` is no memory at all"),
        ("--gpu 1GiB --batch 0", None, "0 sequences"),
        ("--gpu 1GiB --gradient-accumulation-steps 99999", None, "more than 65536 blocks"),
        ("--gpu 1GiB --optimizer adafactor --optimizer-impl fused", None, "forloop"),
        ("--gpu 1GiB --lora r=8,targets=w1", None, "no linear module named `w1`"),
        ("--gpu 1GiB --format html", None, "no `html` report"),
        ("--gpu 1GiB", Some("as given: --batch 2"), "`as given` is the step itself"),
        ("--gpu 1GiB", Some("--batch 2"), "has no name"),
        ("--gpu 1GiB", Some("a: --seq 0"), "`a`: `--seq-len`: a sequence of 0 tokens"),
        ("--gpu 1GiB", Some("a: --gpu t4"), "--gpu"),
    ] {
        let mut command = bench.command(&format!("fit config.json {arguments}"));
        command.args(candidate.iter().flat_map(|candidate| ["--candidate", candidate]));
        let ran = command.output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!((ran.status.code(), ran.stdout.as_slice()), (Some(2), b"".as_slice()), "{arguments}");
        assert!(
            said.starts_with("error: ") && said.contains("\n  help: ") && said.contains(says),
            "{arguments}: {said}"
        );
    }
    assert!(bench.refusal("fit nothing.json --gpu 1GiB").contains("no such file"));
}

/// A frozen model in fp32 is seldom what is meant: the type of its config is tried, and said.
#[test]
fn weights_in_the_type_of_the_config_are_a_way_out() {
    for verb in ["fit", "plan --candidates common"] {
        let out = Bench::new().answer(&format!("{verb} qwen3-8b --gpu rtx-4090 --lora r=16"));
        let head: Vec<&str> = out.lines().take_while(|line| !line.is_empty()).collect();
        let head = head.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(head.contains("it fits with recompute + half-weights (1.96 GiB to spare)"), "{head}");
        let note = "the model's config says bf16, in which transformers 5 loads it: --weights-dtype bf16";
        assert!(head.contains(note), "{head}");
    }
}

/// Steps of other lengths do other work: what a token takes is compared.
#[test]
fn lengths_are_compared_by_the_token() {
    let out = Bench::new().answer("fit gpt2 --gpu rtx-4090 --among seq-len=256,512,1024");
    assert!(out.contains("\nquickest by the token: seq-len "), "{out}");
    let out = Bench::new().answer("fit gpt2 --gpu rtx-4090 --among batch=1,2,4");
    let of_batch = out.split_whitespace().collect::<Vec<_>>().join(" ");
    let says = "1 sequence in a step is no multiple of micro-batch 2 × dp 1 = 2; --global-batch-size N says how many";
    assert!(of_batch.contains(says), "{out}");
}

/// The command of a row plans it, whatever was asked; and the one under the way out plans the change that is named first.
#[test]
fn the_command_of_a_row_plans_it() {
    let deepspeed = json!({
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2}
    });
    let bench = bench().file("ds.json", deepspeed.to_string());
    for (arguments, candidates) in [
        (
            "config.json --gpu 336MiB --batch 8 --offload activations",
            &["frozen: --freeze model.embed_tokens"][..],
        ),
        (
            "config.json --gpu 300MiB --gradient-checkpointing",
            &["not: --gradient-checkpointing=false --batch 2"],
        ),
        ("config.json --gpu 2GiB --from ds.json --gpus 4 --alloc-conf expandable_segments:True", &[]),
    ] {
        let fit = fit_json(&bench, arguments, candidates);
        for row in fit["rows"].as_array().unwrap() {
            let command = format!("{} --format json", row["command"].as_str().unwrap());
            let plan: Value = serde_json::from_str(&bench.pasted(&command)).unwrap();
            let verdict = &plan["verdict"];
            assert_eq!(
                (&plan["device_peak"]["bytes"], &verdict["fits"], &verdict["headroom_bytes"]),
                (&row["device_peak_bytes"], &row["fits"], &row["headroom_bytes"]),
                "{command}"
            );
        }
    }
    let table = bench.answer("fit config.json --gpu 336MiB --batch 8");
    assert!(
        table.contains(
            "  peakledger plan config.json --micro-batch-size 8 --gpu 336MiB \\\n    --recompute full\n"
        ),
        "{table}"
    );
}

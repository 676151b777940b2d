//! `check` and `show` in every format.

use crate::support::{Bench, SAMPLE};
use insta::assert_snapshot;
use serde_json::Value;

#[test]
fn check_is_one_line() {
    assert_snapshot!(Bench::with_sample().answer("check ledger.json"), @"ledger.json: valid (a list of states), 7 states, 6 phases, peak 2.15 GiB in backward");
    let json: Value =
        serde_json::from_str(&Bench::with_sample().answer("check ledger.json --format json")).unwrap();
    assert_eq!(json["peak_bytes"], 2_306_867_200u64);
    assert_eq!(json["states"], 7);
}

#[test]
fn check_as_csv_and_markdown() {
    assert_snapshot!(Bench::with_sample().answer("check ledger.json --format csv"), @"
    file,form,states,phases,candidates,peak_phase,micro_batch,peak_bytes
    ledger.json,array,7,6,0,backward,,2306867200
    ");
    assert_snapshot!(Bench::with_sample().answer("check ledger.json --format markdown"), @"ledger.json: valid (a list of states), 7 states, 6 phases, peak 2.15 GiB in backward");
}

#[test]
fn show_as_a_table() {
    assert_snapshot!(Bench::with_sample().answer("show ledger.json"), @"
    peak 2.15 GiB in backward
    beside it, up to 250.00 MiB on the cpu
    ledger.json: 7 states

       phase         total                                                   cpu
       load       1.37 GiB  █████████████████████████▌                       0 B
       forward    1.86 GiB  ██████████████████████████████████▌       250.00 MiB
       loss       1.66 GiB  ██████████████████████████████▉           250.00 MiB
    ▶  backward   2.15 GiB  ████████████████████████████████████████  250.00 MiB
       update     1.76 GiB  ████████████████████████████████▊                0 B
       zero_grad  1.37 GiB  █████████████████████████▌                       0 B

    at the peak, by category
    parameter             800.00 MiB  36.4 %  █████████████▉
    gradient              400.00 MiB  18.2 %  ██████▉
    optimizer_state       600.00 MiB  27.3 %  ██████████▍
    activation            300.00 MiB  13.6 %  █████▏
    communication_buffer  100.00 MiB   4.5 %  █▊

    contributors
    state                    size   share  category
    parameters         800.00 MiB  36.4 %  parameter
    optimizer_state    600.00 MiB  27.3 %  optimizer_state
    gradients          400.00 MiB  18.2 %  gradient
    activations        300.00 MiB  13.6 %  activation
    collective_buffer  100.00 MiB   4.5 %  communication_buffer
    ");
}

#[test]
fn show_in_ascii() {
    let out = Bench::with_sample().answer("show ledger.json --ascii");
    assert!(out.is_ascii());
    assert_snapshot!(out, @"
    peak 2.15 GiB in backward
    beside it, up to 250.00 MiB on the cpu
    ledger.json: 7 states

       phase         total                                                   cpu
       load       1.37 GiB  #########################                        0 B
       forward    1.86 GiB  ###################################       250.00 MiB
       loss       1.66 GiB  ###############################           250.00 MiB
    >  backward   2.15 GiB  ########################################  250.00 MiB
       update     1.76 GiB  #################################                0 B
       zero_grad  1.37 GiB  #########################                        0 B

    at the peak, by category
    parameter             800.00 MiB  36.4 %  ##############
    gradient              400.00 MiB  18.2 %  #######
    optimizer_state       600.00 MiB  27.3 %  ##########
    activation            300.00 MiB  13.6 %  #####
    communication_buffer  100.00 MiB   4.5 %  ##

    contributors
    state                    size   share  category
    parameters         800.00 MiB  36.4 %  parameter
    optimizer_state    600.00 MiB  27.3 %  optimizer_state
    gradients          400.00 MiB  18.2 %  gradient
    activations        300.00 MiB  13.6 %  activation
    collective_buffer  100.00 MiB   4.5 %  communication_buffer
    ");
}

#[test]
fn show_on_twenty_columns() {
    let out = Bench::with_sample().env("COLUMNS", "20").answer("show ledger.json");
    assert!(out.lines().all(|line| line.chars().count() <= 20), "{out}");
    assert_snapshot!(out, @"
    peak 2.15 GiB in
    backward
    beside it, up to
    250.00 MiB on the
    cpu
    ledger.json: 7
    states

      load      1.37 GiB
      forward   1.86 GiB
      loss      1.66 GiB
    ▶ backward  2.15 GiB
      update    1.76 GiB
      zero_grad 1.37 GiB

    at the peak, by
    category
    parameter 800.00 MiB
    gradient  400.00 MiB
    opti…tate 600.00 MiB
    acti…tion 300.00 MiB
    comm…ffer 100.00 MiB

    contributors
    para…ters 800.00 MiB
    opti…tate 600.00 MiB
    gradients 400.00 MiB
    acti…ions 300.00 MiB
    coll…ffer 100.00 MiB
    ");
}

#[test]
fn show_as_csv() {
    assert_snapshot!(Bench::with_sample().answer("show ledger.json --format csv"), @"
    phase,micro_batch,total_bytes,total_mb,end_bytes,host_bytes,parameter,master_weight,gradient,optimizer_state,activation,workspace,communication_buffer,is_peak,peak_op
    load,,1468006400,1400.0,1468006400,0,838860800,0,0,629145600,0,0,0,false,
    forward,,1992294400,1900.0,1992294400,262144000,838860800,0,0,629145600,314572800,209715200,0,false,
    loss,,1782579200,1700.0,1782579200,262144000,838860800,0,0,629145600,314572800,0,0,false,
    backward,,2306867200,2200.0,2306867200,262144000,838860800,0,419430400,629145600,314572800,0,104857600,true,
    update,,1887436800,1800.0,1887436800,0,838860800,0,419430400,629145600,0,0,0,false,
    zero_grad,,1468006400,1400.0,1468006400,0,838860800,0,0,629145600,0,0,0,false,
    ");
}

#[test]
fn show_as_markdown() {
    assert_snapshot!(Bench::with_sample().answer("show ledger.json --format markdown"), @"
    **Peak 2.15 GiB in backward**

    | phase | total | parameter | gradient | optimizer_state | activation | workspace | communication_buffer | on the cpu |
    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    | load | 1.37 GiB | 800.00 MiB | 0 B | 600.00 MiB | 0 B | 0 B | 0 B | 0 B |
    | forward | 1.86 GiB | 800.00 MiB | 0 B | 600.00 MiB | 300.00 MiB | 200.00 MiB | 0 B | 250.00 MiB |
    | loss | 1.66 GiB | 800.00 MiB | 0 B | 600.00 MiB | 300.00 MiB | 0 B | 0 B | 250.00 MiB |
    | **backward** | **2.15 GiB** | 800.00 MiB | 400.00 MiB | 600.00 MiB | 300.00 MiB | 0 B | 100.00 MiB | 250.00 MiB |
    | update | 1.76 GiB | 800.00 MiB | 400.00 MiB | 600.00 MiB | 0 B | 0 B | 0 B | 0 B |
    | zero_grad | 1.37 GiB | 800.00 MiB | 0 B | 600.00 MiB | 0 B | 0 B | 0 B | 0 B |

    Contributors to the peak:

    | state | category | size | share |
    | --- | --- | ---: | ---: |
    | parameters | parameter | 800.00 MiB | 36.4 % |
    | optimizer_state | optimizer_state | 600.00 MiB | 27.3 % |
    | gradients | gradient | 400.00 MiB | 18.2 % |
    | activations | activation | 300.00 MiB | 13.6 % |
    | collective_buffer | communication_buffer | 100.00 MiB | 4.5 % |
    ");
}

#[test]
fn show_as_json() {
    let small = r#"[{"name": "w", "category": "parameter", "size_mb": 1.5, "start_phase": "load", "end_phase": "load", "device": "gpu", "persistent": true},
                    {"name": "nothing", "category": "workspace", "size_mb": 0, "start_phase": "load", "end_phase": "load", "device": "gpu", "persistent": false}]"#;
    let out = Bench::new().file("small.json", small).answer("show small.json --format json");
    let upto = out.find("\"phase\": \"loss\"").unwrap();
    assert_snapshot!(&out[..upto], @r#"
    {
      "phases": [
        {
          "phase": "load",
          "micro_batch": null,
          "total_bytes": 1572864,
          "total_mb": 1.5,
          "end_bytes": 1572864,
          "host_bytes": 0,
          "moment": 0,
          "peak_op": null,
          "by_category": {
            "parameter": 1572864
          },
          "active_states": [
            "w",
            "nothing"
          ]
        },
        {
          "phase": "forward",
          "micro_batch": null,
          "total_bytes": 0,
          "total_mb": 0.0,
          "end_bytes": 0,
          "host_bytes": 0,
          "moment": 0,
          "peak_op": null,
          "by_category": {},
          "active_states": []
        },
        {
    "#);
    let from = out.find("\"peak\": {").unwrap();
    assert_snapshot!(&out[from..], @r#"
    "peak": {
        "peak_phase": "load",
        "micro_batch": null,
        "peak_bytes": 1572864,
        "peak_mb": 1.5,
        "moment": 0,
        "peak_op": null,
        "by_category": {
          "parameter": 1572864
        },
        "contributors": [
          {
            "name": "w",
            "category": "parameter",
            "detail": null,
            "bytes": 1572864,
            "size_mb": 1.5,
            "share": 1.0,
            "persistent": true
          },
          {
            "name": "nothing",
            "category": "workspace",
            "detail": null,
            "bytes": 0,
            "size_mb": 0.0,
            "share": 0.0,
            "persistent": false
          }
        ]
      },
      "host_peak_bytes": 0,
      "note": null,
      "incomplete": null
    }
    "#);
}

#[test]
fn show_as_json_has_the_figures_of_the_seed() {
    let json: Value =
        serde_json::from_str(&Bench::with_sample().answer("show ledger.json --format json")).unwrap();
    let phases = json["phases"].as_array().unwrap();
    let totals: Vec<f64> = phases.iter().map(|phase| phase["total_mb"].as_f64().unwrap()).collect();
    assert_eq!(totals, [1400.0, 1900.0, 1700.0, 2200.0, 1800.0, 1400.0]);
    assert_eq!(
        phases[1]["active_states"],
        serde_json::json!(["parameters", "optimizer_state", "activations", "forward_workspace"])
    );
    assert_eq!(json["peak"]["peak_phase"], "backward");
    let contributors = json["peak"]["contributors"].as_array().unwrap();
    let names: Vec<&str> = contributors.iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["parameters", "optimizer_state", "gradients", "activations", "collective_buffer"]);
}

#[test]
fn an_empty_ledger_is_six_phases_of_nothing() {
    let bench = Bench::new().file("empty.json", "[]");
    assert_snapshot!(bench.answer("show empty.json"), @"
    peak 0 B in load
    empty.json: 0 states

       phase      total
    ▶  load         0 B
       forward      0 B
       loss         0 B
       backward     0 B
       update       0 B
       zero_grad    0 B
    ");
    let json: Value = serde_json::from_str(&bench.answer("show empty.json --format json")).unwrap();
    let phases = json["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 6);
    assert!(phases.iter().all(|phase| phase["total_bytes"] == 0));
    assert_eq!((&json["peak"]["peak_phase"], &json["peak"]["peak_bytes"]), (&"load".into(), &0.into()));
}

/// Twelve states of a few bytes each, and names that would act on a terminal.
fn crowd() -> String {
    let state = |i: usize| {
        let name = match i {
            0 => r"\u001b[31mred\u202e",
            1 => "层.0|激活",
            2 => "two\\nlines",
            _ => "",
        };
        format!(
            r#"{{"name": "{name}{i}", "category": "activation", "size_bytes": {}, "start_phase": "forward", "end_phase": "loss", "device": "gpu", "persistent": false}}"#,
            1000 - i
        )
    };
    format!("[{}]", (0..12).map(state).collect::<Vec<_>>().join(","))
}

#[test]
fn long_lists_are_cut_and_names_cannot_act() {
    let bench = Bench::new().file("crowd.json", crowd());
    let cut = bench.answer("show crowd.json --top 4");
    assert_snapshot!(cut.split("contributors").last().unwrap(), @r"

    state                     size  share  category
    \u{1b}[31mred\u{202e}0  1000 B  8.4 %  activation
    层.0|激活1               999 B  8.4 %  activation
    two\nlines2              998 B  8.4 %  activation
    3                        997 B  8.4 %  activation
    and 8 more, 7.75 KiB
    ");
    assert!(!cut.contains(['\u{1b}', '\u{202e}']));
    let all = bench.answer("show crowd.json --all");
    assert_eq!(
        all.split("contributors").last().unwrap().trim().lines().count(),
        13,
        "titles and twelve states"
    );
    let markdown = bench.answer("show crowd.json --format markdown --top 3");
    assert_snapshot!(markdown.split("Contributors").last().unwrap(), @r"
     to the peak:

    | state | category | size | share |
    | --- | --- | ---: | ---: |
    | \\u{1b}\[31mred\\u{202e}0 | activation | 1000 B | 8.4 % |
    | 层.0\|激活1 | activation | 999 B | 8.4 % |
    | two\\nlines2 | activation | 998 B | 8.4 % |

    and 9 more, 8.73 KiB
    ");
    assert!(bench.answer("show crowd.json --ascii").is_ascii());
}

#[test]
fn own_timelines_show_their_phases_and_what_runs_at_the_peak() {
    let text = r#"{"schema_version": 1, "timeline": [{"phase": "forward", "micro_batch": 0, "moments": 3},
        {"phase": "backward", "micro_batch": 0, "moments": 2, "peak_op": "model.layers.3.mlp: silu"}],
        "states": [{"name": "a", "category": "activation", "detail": "saved_tensor", "size_bytes": 2048, "persistent": false,
                    "residencies": [{"device": "gpu", "start_phase": "forward", "start_moment": 1, "end_phase": "backward"}]},
                   {"name": "b", "category": "workspace", "size_bytes": 512, "persistent": false,
                    "residencies": [{"device": "gpu", "start_phase": "backward", "start_moment": 1, "end_phase": "backward"}]}]}"#;
    let bench = Bench::new().file("own.json", text);
    assert_snapshot!(bench.answer("show own.json"), @"
    peak 2.50 KiB in backward.0
    at model.layers.3.mlp: silu
    own.json: 2 states

       phase          total
       forward.0   2.00 KiB  ████████████████████████████████
    ▶  backward.0  2.50 KiB  ████████████████████████████████████████

    at the peak, by category
    activation  2.00 KiB  80.0 %  ████████████████████████████████
    workspace      512 B  20.0 %  ████████

    contributors
    state      size   share  category
    a      2.00 KiB  80.0 %  activation (saved_tensor)
    b         512 B  20.0 %  workspace
    ");
    let json: Value = serde_json::from_str(&bench.answer("show own.json --format json")).unwrap();
    assert_eq!(json["peak"]["peak_phase"], "backward");
    assert_eq!(json["peak"]["micro_batch"], 0);
    assert_eq!(json["peak"]["moment"], 1, "counted in the phase");
    assert_eq!(json["peak"]["peak_op"], "model.layers.3.mlp: silu");
}

#[test]
fn standard_input_is_a_file_too() {
    let ran = Bench::new().pipe("check -", SAMPLE);
    assert_eq!(ran.code, Some(0));
    assert!(ran.out.starts_with("standard input: valid"), "{}", ran.out);
    let config = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}"#;
    let ran = Bench::new().pipe("plan - --format json", config);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["model"]["name"], "standard input");
}

#[test]
fn a_dash_is_standard_input_even_beside_a_file_of_that_name() {
    let bench = Bench::new().file("-", "[]");
    for (arguments, says) in [
        ("check -", "standard input: valid (a list of states), 7 states"),
        ("check ./-", "./-: valid (a list of states), 0 states"),
    ] {
        let ran = bench.pipe(arguments, SAMPLE);
        assert!(ran.out.starts_with(says), "{arguments}: {}", ran.out);
    }
}

#[test]
fn what_the_file_says_of_itself_is_shown() {
    let text = r#"{"schema_version": 1, "note": "made by hand *today*\u001b[31m", "states": []}"#;
    let bench = Bench::new().file("noted.json", text);
    assert!(
        bench
            .answer("show noted.json")
            .contains("noted.json: 0 states\nnote: made by hand *today*\\u{1b}[31m\n")
    );
    let markdown = bench.answer("show noted.json --format markdown");
    assert!(markdown.contains("\n\nmade by hand \\*today\\*"), "{markdown}");
    let json: Value = serde_json::from_str(&bench.answer("show noted.json --format json")).unwrap();
    assert_eq!(json["note"], "made by hand *today*\u{1b}[31m");
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    // so many that several threads read them, and long names of which the order is not that of the file
    let state = |i: usize| {
        format!(
            r#"{{"name": "tensor {}", "category": "activation", "size_bytes": {}, "start_phase": "forward", "end_phase": "backward", "device": "gpu", "persistent": false}}"#,
            i * 7919 % 30_000,
            i % 100
        )
    };
    let text = format!("[{}]", (0..30_000).map(state).collect::<Vec<_>>().join(","));
    let bench = Bench::new().file("ledger.json", text);
    for format in ["table", "json", "csv", "markdown"] {
        let arguments = format!("show ledger.json --format {format}");
        assert_eq!(bench.answer(&arguments), bench.answer(&arguments));
    }
}

#[test]
fn nothing_is_wider_than_twenty_columns() {
    let ledger = |word: &str| {
        let phases = (0..30).map(|i| format!(r#"{{"phase": "{word}{i}"}}"#)).collect::<Vec<_>>().join(",");
        let states = (0..50).map(|i| {
            format!(
                r#"{{"name": "{word} tensor {i}", "category": "activation", "size_bytes": 1{i:02}00000, "start_phase": "{word}{}", "end_phase": "{word}29", "device": "gpu", "persistent": false}}"#,
                i % 30
            )
        });
        let states = states.collect::<Vec<_>>().join(",");
        format!(r#"{{"schema_version": 1, "timeline": [{phases}], "states": [{states}]}}"#)
    };
    let bench = Bench::new().file("a.json", ledger("a")).file("b.json", ledger("b")).env("COLUMNS", "20");
    for arguments in [
        "check a.json",
        "show a.json",
        "compare a.json b=b.json",
        "plan qwen2.5-0.5b --gpu t4 --candidate ckpt:--recompute=full",
        "plan qwen2.5-0.5b --candidate ckpt:--recompute=full",
        "plan mixtral-8x7b --step steady --top 3 --attention eager --expand-kv",
    ] {
        let out = bench.answer(arguments);
        let wide = out.lines().find(|line| line.chars().count() > 20);
        assert_eq!(wide, None, "{arguments}");
    }
    assert_eq!(Bench::with_sample().answer("check ledger.json").lines().count(), 1, "a line for programs");
}

#[test]
fn a_table_of_thousands_of_phases_is_cut_unless_all_is_asked_for() {
    let phases = (0..5000).map(|i| format!(r#"{{"phase": "p{i}"}}"#)).collect::<Vec<_>>().join(",");
    let state = r#"{"name": "a", "category": "activation", "size_bytes": 1, "start_phase": "p2500", "end_phase": "p2500", "device": "gpu", "persistent": false}"#;
    let text = format!(r#"{{"schema_version": 1, "timeline": [{phases}], "states": [{state}]}}"#);
    let bench = Bench::new().file("long.json", text);
    let out = bench.answer("show long.json");
    assert!(out.lines().count() < 50 && out.contains("and 4980 more phases (--all shows them)"), "{out}");
    for shown in ["p0 ", "p7 ", "p2498 ", "▶  p2500", "p2502 ", "p4999 "] {
        assert!(out.contains(shown), "{shown}: {out}");
    }
    assert!(bench.answer("show long.json --all").lines().count() > 5000);
    assert!(bench.answer("show long.json --format csv").lines().count() > 5000, "machine formats are whole");
}

//! A memory timeline of three rows.

use super::{holds_on_any_terminal, said};
use peakledger_input::Binary;
use peakledger_measure::timeline::read;
use peakledger_report::{Format, TimelineReport};

#[test]
fn each_format() {
    let text = "[[100, 250, 400], [[0, 8388608, 0, 65536, 0, 0, 0, 0, 0], [0, 8388608, 16777216, 65536, 512, 4194304, 8388608, 0, 1024], [0, 8388608, 16777216, 65536, 0, 0, 0, 0, 0]]]";
    let timeline = read(&mut Binary::from_bytes("timeline.json", text).unwrap(), &mut |_| {}).unwrap();
    let report = TimelineReport { name: "timeline.json", timeline: &timeline };
    insta::assert_snapshot!(said(&report, Format::Table), @r#"
    peak 36.06 MiB after 0.150 ms
    timeline.json: a memory timeline of 3 rows over 0.300 ms; 24.06 MiB at its end

    torch's category       size   share  here
    optimizer_state   16.00 MiB  44.4 %  optimizer_state        █████████████████▊
    parameter          8.00 MiB  22.2 %  parameter              ████████▉
    gradient           8.00 MiB  22.2 %  gradient               ████████▉
    activation         4.00 MiB  11.1 %  activation             ████▍
    input             64.00 KiB   0.2 %  activation (input)     ▏
    unknown            1.00 KiB   0.0 %  not placed             ▏
    temporary             512 B   0.0 %  workspace (temporary)  ▏
    "#);
    insta::assert_snapshot!(said(&report, Format::Csv), @r#"
    torch_category,category,detail,peak_bytes,end_bytes
    parameter,parameter,,8388608,8388608
    optimizer_state,optimizer_state,,16777216,16777216
    input,activation,input,65536,65536
    temporary,workspace,temporary,512,0
    activation,activation,,4194304,0
    gradient,gradient,,8388608,0
    autograd_detail,workspace,,0,0
    unknown,,,1024,0
    "#);
    insta::assert_snapshot!(said(&report, Format::Markdown), @r#"
    **peak 36.06 MiB after 0.150 ms**

    timeline.json: a memory timeline of 3 rows over 0.300 ms; 24.06 MiB at its end

    | torch's category | here | size | share |
    | --- | --- | ---: | ---: |
    | optimizer_state | optimizer_state | 16.00 MiB | 44.4 % |
    | parameter | parameter | 8.00 MiB | 22.2 % |
    | gradient | gradient | 8.00 MiB | 22.2 % |
    | activation | activation | 4.00 MiB | 11.1 % |
    | input | activation (input) | 64.00 KiB | 0.2 % |
    | unknown | not placed | 1.00 KiB | 0.0 % |
    | temporary | workspace (temporary) | 512 B | 0.0 % |
    "#);
    insta::assert_snapshot!(said(&report, Format::Json), @r#"
    {
      "kind": "memory_timeline",
      "form": "totals",
      "rows": 3,
      "lasts_us": 300.0,
      "peak": {
        "row": 1,
        "after_us": 150.0,
        "bytes": 37815808,
        "by_category": {
          "activation": 4259840,
          "gradient": 8388608,
          "optimizer_state": 16777216,
          "parameter": 8388608,
          "workspace": 512
        },
        "unknown_bytes": 1024,
        "by_torch_category": {
          "activation": 4194304,
          "autograd_detail": 0,
          "gradient": 8388608,
          "input": 65536,
          "optimizer_state": 16777216,
          "parameter": 8388608,
          "temporary": 512,
          "unknown": 1024
        }
      },
      "opening": null,
      "end": {
        "bytes": 25231360,
        "by_category": {
          "activation": 65536,
          "optimizer_state": 16777216,
          "parameter": 8388608
        },
        "unknown_bytes": 0,
        "by_torch_category": {
          "activation": 0,
          "autograd_detail": 0,
          "gradient": 0,
          "input": 65536,
          "optimizer_state": 16777216,
          "parameter": 8388608,
          "temporary": 0,
          "unknown": 0
        }
      },
      "notes": []
    }
    "#);
    holds_on_any_terminal(&report);
}

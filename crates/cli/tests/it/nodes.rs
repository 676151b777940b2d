//! Nodes from outside: what is said of what goes between them, and that a search counts it.

use crate::support::Bench;
use insta::assert_snapshot;
use serde_json::Value;

fn json(arguments: &str) -> Value {
    serde_json::from_str(&Bench::new().answer(&format!("{arguments} --format json"))).unwrap()
}

/// The costs of a plan in words.
fn costs(arguments: &str) -> String {
    let answer =
        Bench::new().answer(&format!("plan llama-3.2-1b --precision bf16 --seq-len 128 {arguments}"));
    let lines = answer.lines().skip_while(|line| !line.starts_with("costs of the steady step"));
    lines.take_while(|line| !line.starts_with("not counted")).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_goes_between_nodes_is_said_with_its_network() {
    assert_snapshot!(costs("--tp 2 --dp 8 --gpu h100-80gb"), @"
    costs of the steady step: 478.3 GFLOP; 35.81 GiB moved on the card, 2.09 GiB
    sent to other ranks, 515.65 MiB of it between nodes; theoretical on NVIDIA H100
    80GB HBM3, at its peak rates: 22.45 ms, 169.30 µs to other ranks over NVLink,
    10.81 ms between nodes at 400 Gb/s a GPU (DGX H100)
    ");
    assert_snapshot!(costs("--tp 2 --dp 8 --gpu h100-80gb --network-gbps-per-gpu 12.5"), @"
    costs of the steady step: 478.3 GFLOP; 35.81 GiB moved on the card, 2.09 GiB
    sent to other ranks, 515.65 MiB of it between nodes; theoretical on NVIDIA H100
    80GB HBM3, at its peak rates: 357.69 ms, 169.30 µs to other ranks over NVLink,
    346.05 ms between nodes at 12.5 Gb/s a GPU (as given)
    ");
    assert_snapshot!(costs("--tp 2 --dp 4 --gpu h100-80gb"), @"
    costs of the steady step: 478.3 GFLOP; 35.81 GiB moved on the card, 1.80 GiB
    sent to other ranks; theoretical on NVIDIA H100 80GB HBM3, at its peak rates:
    15.76 ms, 4.29 ms to other ranks over NVLink
    ");
    assert_snapshot!(costs("--tp 2 --dp 8 --gpu rtx-4090"), @"
    costs of the steady step: 478.3 GFLOP; 35.81 GiB moved on the card, 2.09 GiB
    sent to other ranks, 515.65 MiB of it between nodes; there is no theoretical
    time: the rate of the network between nodes of NVIDIA GeForce RTX 4090 is not
    known (`--network-gbps-per-gpu` says it)
    ");
}

#[test]
fn without_a_rate_of_the_network_there_is_no_time() {
    let of = |more: &str| {
        let plan =
            json(&format!("plan llama-3.2-1b --precision bf16 --seq-len 128 --dp 16 --gpu rtx-4090 {more}"));
        plan["costs"].clone()
    };
    let (unknown, known) = (of(""), of("--network-gbps-per-gpu 100"));
    assert_eq!(unknown["theoretical"], Value::Null);
    assert_eq!(unknown["between_nodes_bytes"], known["between_nodes_bytes"]);
    // eight of sixteen ranks on a node: an eighth of what each sends
    let bytes = |key: &str| known[key].as_u64().unwrap();
    assert_eq!(bytes("between_nodes_bytes"), bytes("communicated_bytes").div_ceil(8));
    let seconds = known["theoretical"]["between_nodes_seconds"].as_f64().unwrap();
    let number = |key: &str| known[key].as_f64().unwrap();
    let meanwhile = (number("communicated_bytes") - number("between_nodes_bytes")) / 31.5e9;
    let network = number("between_nodes_bytes") / 12.5e9;
    assert!((seconds - meanwhile.max(network)).abs() < 1e-3, "{seconds}: {meanwhile} over PCIe, {network}");
}

/// Sixteen H100s are two nodes: tensor parallel over both sends twice the hidden states of one over each, and at a lower rate.
#[test]
fn a_search_knows_that_tensor_parallel_over_two_nodes_takes_longer() {
    let search = json(
        "fit llama-2-7b --gpu h100-80gb --gpus 16 --precision bf16 --among tp=8,16 --global-batch-size 16 --seq-len 2048",
    );
    let rows = search["rows"].as_array().unwrap();
    let row = |tp: &str| rows.iter().find(|row| row["values"] == serde_json::json!([tp])).unwrap();
    assert_eq!(rows[0]["name"], "tp 8", "the quickest is first");
    let seconds = |tp, key: &str| row(tp)["theoretical"][key].as_f64().unwrap();
    assert!(seconds("16", "step_seconds") > seconds("8", "step_seconds"));
    assert_eq!(seconds("16", "communicated_seconds"), seconds("16", "between_nodes_seconds"));
    // over the network it takes an eighth at 50 GB/s, which all bytes at 400 GB/s would take
    let bytes = row("16")["communicated_bytes"].as_f64().unwrap();
    assert!((seconds("16", "between_nodes_seconds") / (bytes / 400e9) - 1.0).abs() < 1e-6);
    // of eight the sums of gradients alone go there
    let between = |tp| row(tp)["between_nodes_bytes"].as_u64().unwrap();
    assert!(0 < between("8") && between("8") < row("8")["communicated_bytes"].as_u64().unwrap() / 8);
}

#[test]
fn what_cannot_be_is_said() {
    let refusal = |options: &str| Bench::new().refusal(&format!("plan llama-3.2-1b {options}"));
    assert_snapshot!(refusal("--network-gbps-per-gpu 0"), @"
    error: `--network-gbps-per-gpu`: `0` is no rate that a network has
      help: write Gb/s for each GPU, more than 0 and at most 1000000: 400, or 12.5
    ");
    assert_snapshot!(refusal("--network-gbps-per-gpu fast"), @"
    error: `--network-gbps-per-gpu`: `fast` is no rate of a network
      help: write Gb/s for each GPU, more than 0 and at most 1000000: 400, or 12.5
    ");
    assert_snapshot!(refusal("--dp 16 --gpus-per-node 0"), @"
    error: `--gpus-per-node`: 0 is no number of ranks
      help: use 1 to 1048576
    ");
    assert_snapshot!(refusal("--dp 4 --dp-shard-size 2"), @"
    error: `--dp-shard-size`: nothing of this step reads it
      help: leave it out, or add `--fsdp hybrid_shard`
    ");
    assert_snapshot!(refusal("--dp 6 --fsdp hybrid_shard --dp-shard-size 4"), @"
    error: `--dp-shard-size`: 6 data parallel ranks are no multiple of the 4 that share out
      help: use a size that divides them
    ");
}

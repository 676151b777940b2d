//! Examples at the end of each verb's `--help`. The tests run every line of them.

/// What stands at the end of `peakledger --help`.
pub(crate) const ALL: &str = "\
Examples:
  peakledger plan qwen3-8b --gpu rtx-4090 --precision bf16 --lora r=16 --recompute full
  peakledger fit qwen3-8b --gpu rtx-4090 --precision bf16 --lora r=16
  peakledger read snapshot.pickle
  peakledger fit --help";

pub(crate) const PLAN: &str = "\
Examples:
  peakledger plan llama-3.1-8b --gpu a100-80gb
  peakledger plan qwen3-8b --gpu rtx-4090 --precision bf16 --lora r=16 --recompute full
  peakledger plan config.json --batch 4 --seq 1024 --candidates common -o plan.html
  peakledger plan --from axolotl.yaml --gpu rtx-4090
  peakledger plan llama-3.1-70b --gpus 16 --gpu h100-80gb --zero 3 --recompute full";

pub(crate) const FIT: &str = "\
Examples:
  peakledger fit qwen3-8b --gpu rtx-4090 --precision bf16 --lora r=16
  peakledger fit --from axolotl.yaml --gpu rtx-4090
  peakledger fit llama-3.2-1b --gpu t4 --gpus 4 --precision fp16-mixed --search";

pub(crate) const READ: &str = "\
Examples:
  peakledger read snapshot.pickle
  peakledger read snapshot.pickle --save measured.json
  peakledger read --oom-message train.log";

pub(crate) const REPLAY: &str = "\
Examples:
  peakledger replay snapshot.pickle --alloc-conf expandable_segments:True
  peakledger replay ledger.json --gpu rtx-4090";

pub(crate) const SHOW: &str = "\
Examples:
  peakledger show ledger.json --top 20
  peakledger show snapshot.pickle --plot";

pub(crate) const COMPARE: &str = "\
Examples:
  peakledger plan gpt2 --save base.json
  peakledger plan gpt2 --recompute full --save recompute.json
  peakledger compare base.json recompute=recompute.json";

pub(crate) const RECONCILE: &str = "\
Examples:
  peakledger reconcile --plan ledger.json --measured snapshot.pickle
  peakledger reconcile --plan ledger.json --measured snapshot.pickle --tolerance 1%,24MiB";

pub(crate) const DIFF: &str = "\
Example:
  peakledger diff before.pickle after.pickle";

pub(crate) const REPORT: &str = "\
Examples:
  peakledger report snapshot.pickle -o report.html
  peakledger report ledger.json measured=snapshot.pickle -o both.html";

pub(crate) const SERVE: &str = "\
Examples:
  peakledger serve
  peakledger serve qwen3-8b --no-open";

pub(crate) const CHECK: &str = "\
Example:
  peakledger check ledger.json";

pub(crate) const LIST: &str = "\
Examples:
  peakledger list models
  peakledger list gpus --format csv";

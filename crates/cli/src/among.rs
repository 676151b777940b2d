//! `--among NAME=V,V,…`: which option is named, and what each of its values sets. Every head of a search's table is a name here,
//! `sharding` among them, which is no option of its own.

use crate::combinations::{Value, Varied};
use crate::step_args::{Said, StepArgs};
use crate::usage::Asker;
use clap::Command;
use peakledger_input::{Problem, quoted};

/// How ranks share a step out: each way by its name, what else people call it, and the option that says so.
pub(crate) const SHARDING: [Way; 7] = [
    Way { name: "none", also: "off 0 ddp zero-0 zero0 no-shard replicated", options: "" },
    Way { name: "zero 1", also: "1 zero1 zero-1 stage-1 stage1", options: "--zero 1" },
    Way { name: "zero 2", also: "2 zero2 zero-2 stage-2 stage2", options: "--zero 2" },
    Way { name: "zero 3", also: "3 zero3 zero-3 stage-3 stage3", options: "--zero 3" },
    Way { name: "full_shard", also: "full-shard fsdp fsdp2 fsdp-full-shard", options: "--fsdp full_shard" },
    Way { name: "shard_grad_op", also: "shard-grad-op fsdp-shard-grad-op", options: "--fsdp shard_grad_op" },
    Way { name: "hybrid_shard", also: "hybrid-shard hsdp fsdp-hybrid-shard", options: "--fsdp hybrid_shard" },
];

/// A way to share a step out.
pub(crate) struct Way {
    /// As a search's table has it.
    pub(crate) name: &'static str,
    /// Other spellings, with `-` where people have `_` or a space.
    also: &'static str,
    pub(crate) options: &'static str,
}

/// The head of the table under which these stand.
pub(crate) const SHARDING_HEAD: &str = "sharding";

/// What is wrong with a list of values.
fn wrong(cause: String, mend: impl Into<String>) -> Problem {
    Problem::in_option("--among", cause).mend(mend)
}

const EXAMPLE: &str = "write it as `--among \"tp=1,2,4,8\"`";

/// Reads `tp=1,2`, `sharding=none,zero 3` or `offload=none|activations,optimizer`, for a step of which files said some options.
///
/// # Errors
/// What is wrong with the name or with a value.
pub(crate) fn of(text: &str, step: &StepArgs, of_files: &[&str]) -> Result<Varied, Problem> {
    let Some((name, values)) = text.split_once('=') else {
        return Err(wrong(format!("{} is not NAME=V,V,…", quoted(text)), EXAMPLE));
    };
    let name = name.trim().trim_start_matches("--").replace('_', "-");
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(wrong(format!("{} names no option", quoted(text)), EXAMPLE));
    }
    if name == "gradient-accumulation-steps" {
        let cause = "micro-batches in a step follow from the sequences in a step and the micro-batch";
        return Err(wrong(cause.to_owned(), "use --global-batch-size, and `micro-batch-size=…`"));
    }
    let separator = if values.contains('|') { '|' } else { ',' };
    let values: Vec<&str> = values.split(separator).map(str::trim).collect();
    if name == SHARDING_HEAD {
        let all: Result<Vec<Value>, Problem> =
            values.into_iter().map(|value| sharding(value, step)).collect();
        return Varied::of(&name, all?);
    }
    let all: Result<Vec<Value>, Problem> =
        values.into_iter().map(|value| of_option(&name, value, of_files)).collect();
    Varied::of(&name, all?)
}

/// A value of `sharding`.
fn sharding(value: &str, step: &StepArgs) -> Result<Value, Problem> {
    let word = value.to_ascii_lowercase().replace(['_', ' '], "-");
    let is_it = |way: &&Way| {
        word == way.name.replace(['_', ' '], "-") || way.also.split(' ').any(|known| known == word)
    };
    let Some(way) = SHARDING.iter().find(is_it) else {
        let names: Vec<String> = SHARDING.iter().map(|way| format!("`{}`", way.name)).collect();
        let mend = format!("its values are {}", names.join(", "));
        return Err(wrong(format!("{} is no value of {SHARDING_HEAD}", quoted(value)), mend));
    };
    // what a file said of it is taken back
    let options = match step.says(&["zero", "fsdp"]) {
        false => way.options.to_owned(),
        true if way.options.starts_with("--zero") => format!("--fsdp none {}", way.options),
        true if way.options.is_empty() => "--fsdp none --zero 0".to_owned(),
        true => format!("--zero 0 {}", way.options),
    };
    // it is FSDP's alone
    let options = match step.reduce_dtype() {
        None => options,
        Some(dtype) if way.options.starts_with("--fsdp") => {
            format!("{options} --reduce-dtype {}", dtype.as_str())
        }
        Some(_) => format!("{options} --reduce-dtype none"),
    };
    let is_fsdp = way.options.starts_with("--fsdp");
    let options =
        if step.says_wrap() && !is_fsdp { format!("{options} --fsdp-wrap accelerate") } else { options };
    Ok((way.name.to_owned(), options))
}

/// A value of an option; `none` and `off` are the step without it, also of one that has no such word.
fn of_option(name: &str, value: &str, of_files: &[&str]) -> Result<Value, Problem> {
    if value.is_empty() || value.contains(char::is_whitespace) {
        return Err(wrong(format!("{} is no value of {name}", quoted(value)), EXAMPLE));
    }
    let options = format!("--{name}={value}");
    let is_without = matches!(value, "none" | "off") && is_option(name) && {
        Said::of([options.clone()], Asker::Step("a combination")).is_err()
    };
    if is_without && of_files.contains(&name) {
        let cause = format!("a file says `--{name}`, and no combination can take it back");
        return Err(wrong(cause, "name its values there, or leave it out of the file"));
    }
    Ok((value.to_owned(), if is_without { String::new() } else { options }))
}

/// Whether a step has an option of that name.
fn is_option(name: &str) -> bool {
    let step = <StepArgs as clap::Args>::augment_args(Command::new("step"));
    let has_it = |option: &clap::Arg| {
        let also = option.get_all_aliases().unwrap_or_default();
        option.get_long() == Some(name) || also.contains(&name)
    };
    step.get_arguments().any(has_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> String {
        let varied = of(text, &StepArgs::default(), &[]).map_err(|problem| problem.to_string()).unwrap();
        let settings = varied.settings().map(|setting| format!("{}: {}", setting.name, setting.options));
        settings.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_head_of_the_table_is_a_name() {
        assert_eq!(
            options("sharding=none,zero 3,zero-1, FSDP,hsdp"),
            "none: ; zero 3: --zero 3; zero 1: --zero 1; full_shard: --fsdp full_shard; hybrid_shard: --fsdp hybrid_shard"
        );
        assert_eq!(options("micro_batch_size=1,2"), "1: --micro-batch-size=1; 2: --micro-batch-size=2");
        let mut spellings: Vec<&str> = SHARDING.iter().flat_map(|way| way.also.split(' ')).collect();
        spellings.sort_unstable();
        assert!(spellings.windows(2).all(|pair| pair[0] != pair[1]), "{spellings:?}");
    }

    /// What a file said is taken back by each value that says something else.
    #[test]
    fn sharding_of_a_file_differs_too() {
        let mut step = StepArgs::default();
        step.change(["--zero".to_owned(), "3".to_owned()]).unwrap();
        let of = |value| sharding(value, &step).map_err(|problem| problem.to_string()).unwrap().1;
        assert_eq!(of("none"), "--fsdp none --zero 0");
        assert_eq!(of("zero 1"), "--fsdp none --zero 1");
        assert_eq!(of("fsdp"), "--zero 0 --fsdp full_shard");
        let mut step = StepArgs::default();
        step.change(["--fsdp=full_shard".to_owned(), "--reduce-dtype=bf16".to_owned()]).unwrap();
        let of = |value| sharding(value, &step).map_err(|problem| problem.to_string()).unwrap().1;
        assert_eq!(of("zero 1"), "--fsdp none --zero 1 --reduce-dtype none");
        assert_eq!(of("hsdp"), "--zero 0 --fsdp hybrid_shard --reduce-dtype bf16");
        step.change(["--fsdp-wrap=layers".to_owned()]).unwrap();
        let of = |value| sharding(value, &step).map_err(|problem| problem.to_string()).unwrap().1;
        assert_eq!(of("zero 1"), "--fsdp none --zero 1 --reduce-dtype none --fsdp-wrap accelerate");
    }

    #[test]
    fn none_is_the_step_without_any_option() {
        assert_eq!(
            options("decoder-first-pipeline-num-layers=none,7"),
            "none: ; 7: --decoder-first-pipeline-num-layers=7"
        );
        assert_eq!(options("seq-len=off,512"), "off: ; 512: --seq-len=512");
        // where it is a word of the option's own, that says so
        assert_eq!(options("recompute=none,full"), "none: --recompute=none; full: --recompute=full");
        let refused = of_option("seq-len", "none", &["seq-len"]).unwrap_err().to_string();
        assert!(refused.contains("no combination can take it back"), "{refused}");
        let unknown = of("nothing=none", &StepArgs::default(), &[]).err().map(|problem| problem.to_string());
        assert!(unknown.is_some_and(|said| said.contains("no such option")));
    }
}

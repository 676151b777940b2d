//! The options of post-training: a rollout and passes that score it, around the training step.

use crate::parsers;
use crate::step_args::DtypeArg;
use clap::{Args, ValueEnum};
use peakledger_input::{Problem, quoted};
use peakledger_plan::post_training::{Algorithm, Engine, OffloadBetween, PostTraining, Vllm};

/// What is asked for beside the training step.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Post-training")]
pub(crate) struct PostTrainingArgs {
    /// Plan a step of post-training: a rollout, passes that score it, and the training step on one timeline
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["candidates", "usual", "explain", "shown", "alloc_conf", "files"])]
    post_training: Option<AlgorithmArg>,
    /// Tokens of a prompt [default: 512]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u64>, requires = "post_training")]
    prompt_len: Option<u64>,
    /// Tokens of a response [default: 512, TRL's max_completion_length]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u64>, requires = "post_training")]
    response_len: Option<u64>,
    /// Responses to a prompt that GRPO compares (num_generations) [default: 8]
    #[arg(long, value_name = "G", allow_negative_numbers = true, value_parser = parsers::count::<u64>, requires = "post_training")]
    group_size: Option<u64>,
    /// Sequences of a rollout on each GPU [default: the fewest that are whole steps of training and, over all GPUs, whole groups]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u64>, requires = "post_training")]
    rollout_sequences: Option<u64>,
    /// Who samples: generate() of transformers with the trained weights, or vLLM on the same card with its own [default: hf]
    #[arg(long, value_enum, value_name = "NAME", requires = "post_training")]
    rollout_engine: Option<EngineArg>,
    /// vLLM's share of the card of --gpu; without it, as many blocks as the sequences fill
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = share, requires = "post_training")]
    vllm_gpu_memory_utilization: Option<Share>,
    /// vLLM sleeps while models score and train: at level 1 its weights are on the host, at level 2 it holds nothing
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "2", value_name = "LEVEL", requires = "post_training")]
    vllm_enable_sleep_mode: Option<LevelArg>,
    /// Ranks that share out vLLM's weights and its cache, and sample together [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>, requires = "post_training")]
    vllm_tensor_parallel_size: Option<u32>,
    /// The weight of the KL term of GRPO; with any but 0 there is a reference [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = weight, requires = "post_training")]
    beta: Option<f64>,
    /// The reference's log-probabilities come with DPO's data
    #[arg(long, requires = "post_training")]
    precompute_ref_log_probs: bool,
    /// The type of the reference's and the reward model's weights [default: that of the actor's]
    #[arg(long, value_enum, value_name = "TYPE", requires = "post_training")]
    reference_dtype: Option<DtypeArg>,
    /// A reward model of the actor's architecture is on the card [default: for ppo]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag(), requires = "post_training")]
    reward_model: Option<bool>,
    /// What waits on the host between the phases that need it: actor, optimizer, reference, reward, critic, several with
    /// commas between (param_offload and optimizer_offload of verl) [default: none]
    #[arg(long, value_name = "WHAT,…", value_parser = between, requires = "post_training")]
    offload_between: Option<OffloadBetween>,
}

#[derive(Clone, Copy, ValueEnum)]
enum AlgorithmArg {
    Grpo,
    Ppo,
    Dpo,
}

#[derive(Clone, Copy, ValueEnum)]
enum EngineArg {
    Hf,
    Vllm,
}

#[derive(Clone, Copy, ValueEnum)]
enum LevelArg {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
}

/// A share of a card, in millionths.
#[derive(Clone, Copy)]
struct Share(u32);

/// A decimal fraction above 0 and up to 1, to the millionth: sums stay whole.
fn share(text: &str) -> Result<Share, Problem> {
    let wrong = || {
        let problem = Problem::anywhere(format!("{} is no share of a card", quoted(text)));
        problem.mend("use a number above 0 and up to 1, as in 0.3")
    };
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_number = text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && decimals.len() <= 6;
    let millionths = format!("{whole}{decimals:0<6}").parse::<u32>().map_err(|_| wrong())?;
    match is_number && (1..=1_000_000).contains(&millionths) {
        true => Ok(Share(millionths)),
        false => Err(wrong()),
    }
}

fn weight(text: &str) -> Result<f64, Problem> {
    let number = text.parse().ok().filter(|weight: &f64| weight.is_finite() && *weight >= 0.0);
    number.ok_or_else(|| {
        Problem::anywhere(format!("{} is no weight of a loss", quoted(text)))
            .mend("use a number of 0 or more")
    })
}

fn between(text: &str) -> Result<OffloadBetween, Problem> {
    let mut between = OffloadBetween::default();
    for word in text.split(',').map(str::trim) {
        let part = match word {
            "actor" => &mut between.actor,
            "optimizer" => &mut between.optimizer,
            "reference" => &mut between.reference,
            "reward" => &mut between.reward,
            "critic" => &mut between.critic,
            "none" if text == "none" => break,
            _ => {
                let mend = "choose of `actor`, `optimizer`, `reference`, `reward`, `critic`, several with commas between, or `none`";
                return Err(Problem::anywhere(format!("{} is none of its values", quoted(word))).mend(mend));
            }
        };
        *part = true;
    }
    Ok(between)
}

impl PostTrainingArgs {
    /// The plain request, if post-training is asked for.
    pub(crate) fn request(&self) -> Result<Option<PostTraining>, Problem> {
        let Some(algorithm) = self.post_training else { return Ok(None) };
        let algorithm = match algorithm {
            AlgorithmArg::Grpo => Algorithm::Grpo,
            AlgorithmArg::Ppo => Algorithm::Ppo,
            AlgorithmArg::Dpo => Algorithm::Dpo,
        };
        let usual = PostTraining::new(algorithm);
        Ok(Some(PostTraining {
            prompt_len: self.prompt_len.unwrap_or(usual.prompt_len),
            response_len: self.response_len.unwrap_or(usual.response_len),
            group_size: self.group_size,
            rollout_sequences: self.rollout_sequences,
            engine: self.engine()?,
            reference: self.reference(algorithm)?,
            reference_dtype: self.reference_dtype.map(Into::into),
            reward_model: self.reward_model,
            offload_between: self.offload_between.unwrap_or_default(),
            ..usual
        }))
    }

    fn engine(&self) -> Result<Engine, Problem> {
        let vllm = Vllm {
            gpu_memory_utilization: self.vllm_gpu_memory_utilization.map(|Share(millionths)| millionths),
            sleep_level: self.vllm_enable_sleep_mode.map(|level| match level {
                LevelArg::One => 1,
                LevelArg::Two => 2,
            }),
            tensor_parallel_size: self.vllm_tensor_parallel_size.unwrap_or(1),
        };
        let asked = [
            ("--vllm-gpu-memory-utilization", vllm.gpu_memory_utilization.is_some()),
            ("--vllm-enable-sleep-mode", vllm.sleep_level.is_some()),
            ("--vllm-tensor-parallel-size", self.vllm_tensor_parallel_size.is_some()),
        ];
        match (self.rollout_engine, asked.iter().find(|(_, asked)| *asked)) {
            (Some(EngineArg::Vllm), _) => Ok(Engine::Vllm(vllm)),
            (_, None) => Ok(Engine::Hf),
            (_, Some((option, _))) => {
                let problem = Problem::in_option(*option, "vLLM does not sample here");
                Err(problem.mend("add `--rollout-engine vllm`, or leave it out"))
            }
        }
    }

    /// Whether there is a reference, where that is said.
    fn reference(&self, algorithm: Algorithm) -> Result<Option<bool>, Problem> {
        if self.beta.is_some() && algorithm != Algorithm::Grpo {
            let problem = Problem::in_option("--beta", "it decides whether GRPO has a reference");
            return Err(problem.mend("leave it out: the others have one, whatever its weight"));
        }
        if self.precompute_ref_log_probs && algorithm != Algorithm::Dpo {
            let cause = "responses that are sampled have no log-probabilities beforehand";
            return Err(Problem::in_option("--precompute-ref-log-probs", cause)
                .mend("leave it out, or use `--post-training dpo`"));
        }
        let is_told = self.beta.map(|beta| beta > 0.0);
        Ok(is_told.or(self.precompute_ref_log_probs.then_some(false)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_exact_to_the_millionth() {
        let millionths = |text| share(text).ok().map(|Share(millionths)| millionths);
        assert_eq!(
            [millionths("0.3"), millionths("1"), millionths("1.0")],
            [Some(300_000), Some(1_000_000), Some(1_000_000)]
        );
        assert_eq!(millionths("0.000001"), Some(1));
        for text in ["0", "1.1", "-0.5", "0.0000001", "a", "", ".", "0.3.3", "1e-1", "+1"] {
            assert_eq!(millionths(text), None, "{text}");
        }
    }
}

//! Ranks that are asked for and do nothing, or not yet: what is easily taken for a saving, said beside the verdict.

use crate::parallel::Sharding;
use crate::plan::Plan;

impl Plan {
    /// Each a sentence with what to do about it.
    pub fn idle_ranks(&self) -> Vec<String> {
        [self.shared_with_nobody(), self.idle_stages()].into_iter().flatten().collect()
    }

    /// A step that is to be shared out, and there is one rank.
    fn shared_with_nobody(&self) -> Option<String> {
        let sharding = self.options.parallel.sharding;
        let is_alone = self.mesh.replicas() == 1 && sharding != Sharding::Replicated;
        is_alone.then(|| {
            let option = if sharding.is_fsdp() { "--fsdp" } else { "--zero" };
            format!(
                "{option} shares the step out among data parallel ranks, and there is one: --gpus takes more"
            )
        })
    }

    /// A pipeline with fewer micro-batches than stages.
    fn idle_stages(&self) -> Option<String> {
        let (stages, micro_batches) = (self.mesh.pp, self.options.gradient_accumulation_steps);
        (micro_batches < stages).then(|| {
            format!(
                "{micro_batches} micro-batch{} for {stages} stages: at any time {} of them stand idle at least; --gradient-accumulation-steps {stages} or \
                 more keeps them at work",
                if micro_batches == 1 { "" } else { "es" },
                stages - micro_batches,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::catalogue::open_model;
    use crate::config::Architecture;
    use crate::options::Options;
    use crate::parallel::{Parallel, Sharding};

    fn idle(gradient_accumulation_steps: u32, parallel: Parallel) -> String {
        let architecture = Architecture::read(&open_model("qwen2.5-0.5b").unwrap().config).unwrap();
        let options =
            Options { seq_len: Some(16), gradient_accumulation_steps, parallel, ..Options::default() };
        crate::plan(architecture, options).unwrap().idle_ranks().join("\n")
    }

    #[test]
    fn ranks_that_have_nothing_to_do_are_said() {
        let one = Parallel::default();
        let zero = Parallel { sharding: Sharding::Zero3, ..Parallel::default() };
        let two = Parallel { gpus: Some(2), ..zero.clone() };
        let fsdp = Parallel { sharding: Sharding::FullShard, ..Parallel::default() };
        let stages = Parallel { pp: 4, ..Parallel::default() };
        assert_eq!(idle(1, one), "");
        assert_eq!(idle(1, two), "");
        assert_eq!(
            idle(1, zero),
            "--zero shares the step out among data parallel ranks, and there is one: --gpus takes more"
        );
        assert!(idle(1, fsdp).starts_with("--fsdp shares"));
        assert_eq!(
            idle(1, stages.clone()),
            "1 micro-batch for 4 stages: at any time 3 of them stand idle at least; --gradient-accumulation-steps 4 or more \
             keeps them at work"
        );
        assert!(
            idle(3, stages.clone()).starts_with("3 micro-batches for 4 stages: at any time 1 of them stand")
        );
        assert_eq!(idle(4, stages), "");
    }
}

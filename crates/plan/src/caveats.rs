//! What whoever reads a plan's figures must know first, since it is easily taken for granted: said beside the verdict, each
//! with what to do about it.

use crate::Plan;
use crate::catalogue::Card;
use crate::options::Precision;
use crate::parallel::Stack;
use crate::torch::Dtype;

/// The first compute capability whose kernels multiply in bf16.
const BF16_SINCE: (u8, u8) = (8, 0);

impl Plan {
    /// Each of them, a sentence and its mend.
    pub fn caveats(&self, card: Option<&Card>) -> Vec<String> {
        let of_card = card.and_then(|card| self.without_bf16(card));
        let of_amount = card.and_then(Card::caveat);
        self.other_weights().into_iter().chain(of_card).chain(of_amount).collect()
    }

    /// The weights are planned in fp32 by the precision alone, and the model's own loader has them in a half type.
    fn other_weights(&self) -> Option<String> {
        let dtype = self.planned_without()?;
        Some(format!(
            "the weights are planned in fp32, as --precision {} has them; the model's config says {}, in which transformers 5 \
             loads it: --weights-dtype {} plans that",
            self.options.precision.as_str(),
            dtype.as_str(),
            dtype.as_str()
        ))
    }

    /// The half type of the model's config that is not planned.
    pub fn planned_without(&self) -> Option<Dtype> {
        let options = &self.options;
        let dtype = self.architecture.dtype.filter(|dtype| dtype.is_half())?;
        let is_implied = options.precision.autocast().is_some() && options.weights_dtype.is_none();
        // FSDP of accelerate makes what is trained fp32 (`fsdp2_prepare_model`), and torchtitan has it so
        let is_upcast = options.parallel.sharding.is_fsdp() && options.lora.is_none();
        // GradScaler refuses gradients in fp16
        let is_refused = options.grad_scaler && dtype == Dtype::F16 && options.lora.is_none();
        let is_planned = options.weights() != Dtype::F32 || options.prepare_for_kbit;
        let asks = is_implied && options.stack == Stack::Transformers;
        (asks && !is_upcast && !is_refused && !is_planned).then_some(dtype)
    }

    /// The step computes in a type that the card has no kernels for.
    fn without_bf16(&self, card: &Card) -> Option<String> {
        let (major, minor) = card.capability.filter(|capability| *capability < BF16_SINCE)?;
        let instead = match self.options.precision {
            Precision::Bf16Mixed => "--precision fp16-mixed",
            _ if self.options.compute() == Dtype::Bf16 => "--precision fp16",
            _ => return None,
        };
        let name = card.full_name.as_deref().unwrap_or(&card.name);
        Some(format!(
            "{name} has no bf16 (it is sm{major}{minor}, and bf16 begins with sm80): torch emulates it there, slowly; \
             {instead} plans what is run instead"
        ))
    }
}

#[cfg(test)]
mod tests {
    use crate::catalogue::{card, open_model};
    use crate::config::Architecture;
    use crate::options::{Lora, Options, Precision};
    use crate::parallel::{Parallel, Sharding};
    use crate::torch::Dtype;

    fn caveats(options: Options, gpu: Option<&str>) -> Vec<String> {
        let architecture = Architecture::read(&open_model("qwen2.5-0.5b").unwrap().config).unwrap();
        let card = gpu.map(|gpu| card(gpu).unwrap());
        crate::plan(architecture, Options { seq_len: Some(64), ..options }).unwrap().caveats(card.as_ref())
    }

    #[test]
    fn weights_in_another_type_than_the_config_has_are_said() {
        insta::assert_snapshot!(caveats(Options::default(), None).join("\n"), @"the weights are planned in fp32, as --precision bf16-mixed has them; the model's config says bf16, in which transformers 5 loads it: --weights-dtype bf16 plans that");
        let lora = Lora { rank: 8, ..Lora::default() };
        let fsdp = Parallel { gpus: Some(2), sharding: Sharding::FullShard, ..Parallel::default() };
        for quiet in [
            Options { weights_dtype: Some(Dtype::Bf16), ..Options::default() },
            Options { weights_dtype: Some(Dtype::F32), ..Options::default() },
            Options { precision: Precision::Bf16, ..Options::default() },
            Options { precision: Precision::Fp32, ..Options::default() },
            Options { parallel: fsdp.clone(), ..Options::default() },
        ] {
            assert_eq!(caveats(quiet.clone(), None), Vec::<String>::new(), "{quiet:?}");
        }
        assert_eq!(caveats(Options { lora: Some(lora), ..Options::default() }, None).len(), 1);
    }

    #[test]
    fn a_card_without_bf16_is_said() {
        let plain = Options { weights_dtype: Some(Dtype::F32), ..Options::default() };
        insta::assert_snapshot!(caveats(plain.clone(), Some("t4")).join("\n"), @"Tesla T4 has no bf16 (it is sm75, and bf16 begins with sm80): torch emulates it there, slowly; --precision fp16-mixed plans what is run instead");
        assert_eq!(caveats(plain.clone(), Some("a100-80gb")), Vec::<String>::new());
        assert_eq!(caveats(plain.clone(), Some("80TB")), Vec::<String>::new());
        let fp16 = Options { precision: Precision::Fp16Mixed, ..plain };
        assert_eq!(caveats(fp16, Some("t4")), Vec::<String>::new());
        let bf16 = Options { precision: Precision::Bf16, ..Options::default() };
        insta::assert_snapshot!(caveats(bf16, Some("v100-16gb")).join("\n"), @"Tesla V100-SXM2-16GB has no bf16 (it is sm70, and bf16 begins with sm80): torch emulates it there, slowly; --precision fp16 plans what is run instead");
    }
}

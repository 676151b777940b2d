//! Which ranges of a recording are a phase: names with `*` in them, of which every phase has some to begin with.

use peakledger_core::Phase;

/// Which names of ranges stand for which phase. A `*` stands for any text, and capital letters count as small ones.
///
/// A known pattern without `::` is not meant for an op (`aten::nll_loss_forward`), nor one without `): ` for a Python
/// function (`torch/nn/modules/linear.py(130): forward`): most people's own ranges are named more plainly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeNames {
    own: Vec<(String, Phase)>,
}

/// The phases that a range can stand for, in the order in which a name that fits several is taken.
const KNOWN: [(Phase, &[&str]); 5] = [
    (Phase::ZeroGrad, &["*zero_grad*", "*zero grad*", "torch/optim/*): zero_grad"]),
    (
        Phase::Update,
        &[
            "Optimizer.step#*",
            "*optimizer*",
            "*optim.step*",
            "*optim_step*",
            "update",
            "*clip_grad*",
            "torch/optim/*): step",
            "torch/nn/utils/clip_grad.py(*): clip_grad_norm_",
        ],
    ),
    (Phase::Backward, &["*backward*", "autograd::engine::evaluate_function: *", "*): backward"]),
    (Phase::Loss, &["*loss*", "*criterion*", "nn.Module: *Loss*", "aten::*_loss"]),
    (Phase::Forward, &["*forward*", "fwd", "nn.Module: *", "torch/nn/modules/*): forward"]),
];

/// What a whole step is named.
const STEP: &str = "ProfilerStep#*";

impl RangeNames {
    /// The names that are known, and this one before them. The phase `step` names whole steps.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, phase: Phase) -> RangeNames {
        self.own.push((name.into(), phase));
        self
    }

    /// The phase that a range of that name is.
    pub(crate) fn phase(&self, name: &str) -> Option<Phase> {
        if let Some((_, phase)) = self.own.iter().find(|(own, _)| like(own.as_bytes(), name.as_bytes())) {
            return Some(phase.clone()).filter(|phase| phase.as_str() != "step");
        }
        let fitting =
            || KNOWN.iter().filter(|(_, patterns)| patterns.iter().any(|pattern| fits(pattern, name)));
        let has = |wanted: Phase| fitting().any(|(phase, _)| *phase == wanted);
        // forward and backward together are neither
        if has(Phase::Forward) && has(Phase::Backward) {
            return None;
        }
        fitting().next().map(|(phase, _)| phase.clone())
    }

    /// Whether a range of that name is a whole step.
    pub(crate) fn is_step(&self, name: &str) -> bool {
        let own = self.own.iter().find(|(own, _)| like(own.as_bytes(), name.as_bytes()));
        own.map_or_else(|| fits(STEP, name), |(_, phase)| phase.as_str() == "step")
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    let markers = ["::", "): ", "nn.Module: "];
    markers.iter().all(|marker| !name.contains(marker) || pattern.contains(marker))
        && like(pattern.as_bytes(), name.as_bytes())
}

/// Whether the text is like the pattern. The last `*` is tried again further on, so time is length times length at most.
fn like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    while seen < text.len() {
        match (pattern.get(at), text.get(seen)) {
            (Some(b'*'), _) => {
                again = Some((at + 1, seen));
                at += 1;
            }
            (Some(a), Some(b)) if a.eq_ignore_ascii_case(b) => {
                at += 1;
                seen += 1;
            }
            _ => match again {
                None => return false,
                Some((after, from)) => {
                    again = Some((after, from + 1));
                    at = after;
                    seen = from + 1;
                }
            },
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_told_by_their_names() {
        let names = RangeNames::default();
        let phase = |name: &str| names.phase(name).map(|phase| phase.to_string()).unwrap_or_default();
        for (name, expected) in [
            ("forward_phase", "forward"),
            ("## Forward ##", "forward"),
            ("DistributedDataParallel.forward", "forward"),
            ("nn.Module: Linear_0", "forward"),
            ("torch/nn/modules/container.py(254): forward", "forward"),
            ("my/model.py(12): forward_features", ""),
            ("aten::max_pool2d_forward", ""),
            ("nn.Module: CrossEntropyLoss_0", "loss"),
            ("aten::cross_entropy_loss", "loss"),
            ("aten::nll_loss_forward", ""),
            ("backward", "backward"),
            ("torch/_tensor.py(566): backward", "backward"),
            ("autograd::engine::evaluate_function: AddmmBackward0", "backward"),
            ("NllLossBackward0", "backward"),
            ("forward-backward-func", ""),
            ("Optimizer.step#AdamW.step", "update"),
            ("Optimizer.zero_grad#SGD.zero_grad", "zero_grad"),
            ("torch/optim/adam.py(215): step", "update"),
            ("ProfilerStep#5", ""),
            ("step0", ""),
        ] {
            assert_eq!(phase(name), expected, "{name}");
        }
        assert!(names.is_step("ProfilerStep#12"));
    }

    #[test]
    fn names_of_ones_own_come_before_the_known() {
        let names =
            RangeNames::default().with("student*", Phase::Forward).with("forward", Phase::named("scoring"));
        let names = names.with("train_step", Phase::named("step"));
        assert_eq!(names.phase("Student pass"), Some(Phase::Forward));
        assert_eq!(
            (names.phase("forward"), names.phase("backward")),
            (Some(Phase::named("scoring")), Some(Phase::Backward))
        );
        assert_eq!(
            (names.phase("train_step"), names.is_step("train_step"), names.is_step("ProfilerStep#1")),
            (None, true, true)
        );
    }

    #[test]
    fn stars_stand_for_any_text() {
        let like = |pattern: &str, text: &str| like(pattern.as_bytes(), text.as_bytes());
        assert!(like("*", "") && like("a*c", "abbc") && like("*a*b*", "xxaxxbxx") && like("", ""));
        assert!(!like("a*c", "abcd") && !like("", "a") && !like("a", ""));
        assert!(!like(&"*a".repeat(100), &"a".repeat(99)) && like(&"*a".repeat(99), &"a".repeat(5000)));
    }
}

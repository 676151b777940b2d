//! Which ranges of a trace are a phase: names with `*` in them, of which every phase has some to begin with.

use peakledger_core::Phase;
use peakledger_input::Problem;

/// Which names of ranges stand for which phase. A `*` stands for any text, and capital letters count as small ones.
///
/// A pattern that has no `::` in it is not meant for an op (`aten::nll_loss_forward`), and one that has no `): ` not for a
/// Python function (`torch/nn/modules/linear.py(130): forward`): most people's own ranges are named more plainly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseNames {
    of: Vec<(Phase, Vec<String>)>,
    steps: Vec<String>,
}

/// The phases that a range can stand for, in the order in which a name that fits several is taken.
const DEFAULTS: [(Phase, &[&str]); 5] = [
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

impl Default for PhaseNames {
    fn default() -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        PhaseNames {
            of: DEFAULTS.into_iter().map(|(phase, names)| (phase, owned(names))).collect(),
            steps: vec!["ProfilerStep#*".to_owned()],
        }
    }
}

impl PhaseNames {
    /// These names with others for some phases: `forward=my_fwd*|teacher,update=opt` (`step=…` names whole steps).
    ///
    /// # Errors
    /// A part without `=`, or a word that is no phase, with those that are.
    pub fn with(mut self, text: &str) -> Result<PhaseNames, Problem> {
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (word, names) = part.split_once('=').ok_or_else(|| {
                let problem = Problem::in_option("--phases", format!("`{part}` has no `=`"));
                problem.mend("write PHASE=NAME, as in `forward=my_fwd*|teacher,update=opt`")
            })?;
            let names = names.split('|').map(|name| name.trim().to_owned()).collect();
            match (word.trim(), self.of.iter_mut().find(|(phase, _)| phase.as_str() == word.trim())) {
                ("step", _) => self.steps = names,
                (_, Some((_, known))) => *known = names,
                (word, None) => {
                    let problem = Problem::in_option("--phases", format!("`{word}` is no phase of a range"));
                    return Err(
                        problem.mend("the phases are forward, loss, backward, update, zero_grad; and `step`")
                    );
                }
            }
        }
        Ok(self)
    }

    /// The phase that a range of that name is.
    pub(super) fn phase(&self, name: &str) -> Option<Phase> {
        let fits = |phase: &Phase| {
            let names = self.of.iter().find(|(known, _)| known == phase);
            names.is_some_and(|(_, names)| names.iter().any(|pattern| fits(pattern, name)))
        };
        // a whole step, or forward and backward together, is neither of them
        if self.is_step(name) || (fits(&Phase::Forward) && fits(&Phase::Backward)) {
            return None;
        }
        self.of.iter().map(|(phase, _)| phase).find(|phase| fits(phase)).cloned()
    }

    /// Whether a range of that name is a whole step.
    pub(super) fn is_step(&self, name: &str) -> bool {
        self.steps.iter().any(|pattern| fits(pattern, name))
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    let markers = ["::", "): ", "nn.Module: "];
    markers.iter().all(|marker| !name.contains(marker) || pattern.contains(marker) || pattern == "*")
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
        let names = PhaseNames::default();
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
    fn names_of_ones_own_take_the_place_of_the_usual() {
        let names = PhaseNames::default().with("forward=student*|teacher, step=train_step").unwrap();
        assert_eq!(names.phase("Student pass"), Some(Phase::Forward));
        assert_eq!((names.phase("forward"), names.phase("backward")), (None, Some(Phase::Backward)));
        assert!(names.is_step("train_step") && !names.is_step("ProfilerStep#1"));
        let said = |text: &str| PhaseNames::default().with(text).unwrap_err().to_string();
        assert!(said("forward").contains("has no `=`"));
        assert!(said("fwd=x").contains("no phase of a range"));
    }

    #[test]
    fn stars_stand_for_any_text() {
        let like = |pattern: &str, text: &str| like(pattern.as_bytes(), text.as_bytes());
        assert!(like("*", "") && like("a*c", "abbc") && like("*a*b*", "xxaxxbxx") && like("", ""));
        assert!(!like("a*c", "abcd") && !like("", "a") && !like("a", ""));
        assert!(!like(&"*a".repeat(100), &"a".repeat(99)) && like(&"*a".repeat(99), &"a".repeat(5000)));
    }
}

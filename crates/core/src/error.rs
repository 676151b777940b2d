//! What can be wrong with a ledger: the rule that is broken, and the state that breaks it.

use crate::StateId;
use std::fmt;

/// A ledger that cannot be: which rule, and at which state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerError {
    /// The rule.
    pub kind: LedgerErrorKind,
    /// The state that breaks it, where one does.
    pub state: Option<StateId>,
}

/// The rules of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LedgerErrorKind {
    /// A timeline needs at least one phase.
    NoPhases,
    /// A phase of one micro-batch appears once.
    #[allow(missing_docs)]
    DuplicatePhase { id: String, first: usize, second: usize },
    /// A state has a name.
    EmptyName,
    /// A name appears once.
    #[allow(missing_docs)]
    DuplicateName { name: String, first: StateId },
    /// A state sits somewhere.
    NoResidency,
    /// A residency does not end before it starts.
    #[allow(missing_docs)]
    EndBeforeStart { residency: usize },
    /// A residency lies on the timeline.
    #[allow(missing_docs)]
    OutsideTimeline { residency: usize },
    /// A state is not counted twice at one moment.
    #[allow(missing_docs)]
    Overlap { first: usize, second: usize },
    /// Totals fit into 64 bits.
    #[allow(missing_docs)]
    SumOverflow { phase: String },
    /// States are counted in 32 bits.
    TooManyStates,
}

impl LedgerErrorKind {
    /// This error, of no state in particular.
    pub fn anywhere(self) -> LedgerError {
        LedgerError { kind: self, state: None }
    }

    /// This error, of that state.
    pub fn at(self, state: StateId) -> LedgerError {
        LedgerError { kind: self, state: Some(state) }
    }

    /// What to do about it.
    pub fn mend(&self) -> &'static str {
        match self {
            Self::NoPhases => "list at least one phase, or leave `timeline` out to get the six standard ones",
            Self::DuplicatePhase { .. } => "give the second one another name or `micro_batch`",
            Self::EmptyName => "give the state a name",
            Self::DuplicateName { .. } => {
                "rename one of them; a state with several residencies lists them in `residencies`"
            }
            Self::NoResidency => "list at least one residency",
            Self::EndBeforeStart { .. } => "swap start and end; both ends count, so they may be the same",
            Self::OutsideTimeline { .. } => {
                "keep the residency inside the timeline, or lengthen the timeline"
            }
            Self::Overlap { .. } => {
                "end the first residency before the second begins: at one moment a state counts once"
            }
            Self::SumOverflow { .. } => "check the sizes: no machine holds 2^64 bytes",
            Self::TooManyStates => "split the ledger: it holds up to 2^32 states",
        }
    }
}

impl fmt::Display for LedgerErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPhases => write!(f, "the timeline has no phases"),
            Self::DuplicatePhase { id, first, second } => {
                write!(f, "phase `{id}` appears twice in the timeline (entries {first} and {second})")
            }
            Self::EmptyName => write!(f, "a state has an empty name"),
            Self::DuplicateName { name, first } => {
                write!(f, "two states are named `{name}` (the first is state {})", first.0)
            }
            Self::NoResidency => write!(f, "the state has no residency"),
            Self::EndBeforeStart { .. } => write!(f, "the residency ends before it starts"),
            Self::OutsideTimeline { .. } => write!(f, "the residency reaches outside the timeline"),
            Self::Overlap { first, second } => {
                write!(
                    f,
                    "residencies {first} and {second} overlap on one device, which counts the state twice"
                )
            }
            Self::SumOverflow { phase } => {
                write!(f, "the sum of the sizes in phase `{phase}` passes 64 bits")
            }
            Self::TooManyStates => write!(f, "there are more than 2^32 states"),
        }
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            Some(id) => write!(f, "state {}: {}", id.0, self.kind),
            None => write!(f, "{}", self.kind),
        }
    }
}

impl std::error::Error for LedgerError {}

//! What files have that cannot be, and what they leave open and nobody answers: all of it in one sentence, so that it is said at
//! once.

use super::combine::{Combined, Said};
use super::found::{Ask, Origin};
use peakledger_input::{Place, Problem};

/// Something to be said yet: its cause, the key that leaves it open, and what answers it.
struct Open {
    origin: Origin,
    cause: String,
    option: &'static str,
}

impl Combined {
    /// Refuses what cannot be, with what is asked beside it.
    pub(super) fn answer_refused(&mut self, said: &Said) -> Result<(), Problem> {
        let refused = std::mem::take(&mut self.refused);
        if refused.is_empty() {
            return Ok(());
        }
        let asked = self.asks.iter().filter(|ask| ask.option != "MODEL" && self.is_open(ask, said));
        let asked = asked.map(|ask| ask.origin.problem(&*ask.cause).mend(mend(&[ask.option])));
        let mut all: Vec<Problem> = refused.into_iter().chain(asked).collect();
        // file by file, from above
        let files: Vec<&str> = self.files.iter().map(|(name, ..)| name.as_str()).collect();
        all.sort_by_key(|problem| {
            let place = match problem.place {
                Some(Place::Text { line, column, .. }) => (line, column),
                _ => (0, 0),
            };
            (files.iter().position(|name| Some(*name) == problem.file.as_deref()), place)
        });
        let mut all = all.into_iter();
        let Some(first) = all.next() else { return Ok(()) };
        let others: Vec<Problem> = all.collect();
        if others.is_empty() {
            return Err(first);
        }
        let (mut causes, mut mends) = (first.cause.clone(), mend_of(&first));
        for other in others {
            mends += &format!("; {}", mend_of(&other));
            causes += "; ";
            match &other.place {
                Some(place) if other.file == first.file => causes += &format!("{place}: {}", other.cause),
                _ => causes += &Problem { mend: None, ..other }.to_string(),
            }
        }
        Err(Problem { cause: causes, mend: Some(mends), ..first })
    }

    /// Refuses what would be a guess.
    pub(super) fn answer_asks(&self, said: &Said, has_model: bool) -> Result<(), Problem> {
        let is_open = |ask: &&Ask| match ask.option {
            "MODEL" => !has_model,
            _ => self.is_open(ask, said),
        };
        let mut open: Vec<Open> = Vec::new();
        for Ask { option, origin, cause, .. } in self.asks.iter().filter(is_open) {
            if open.iter().all(|known| known.option != *option) {
                open.push(Open { origin: origin.clone(), cause: cause.clone(), option });
            }
        }
        if open.iter().all(|known| known.option != "--gpus") {
            open.extend(self.uncounted(said));
        }
        let is_model_open = !has_model && open.iter().all(|known| known.option != "MODEL");
        if let Some(first) = open.first().filter(|_| is_model_open) {
            let (origin, cause) = (first.origin.clone(), "no model is named".to_owned());
            open.push(Open { origin, cause, option: "MODEL" });
        }
        let Some(first) = open.first() else { return Ok(()) };
        let options: Vec<&str> = open.iter().map(|open| open.option).collect();
        Err(first.origin.problem(causes(&open)).mend(mend(&options)))
    }

    /// Whether nobody answers it who may.
    fn is_open(&self, ask: &Ask, said: &Said) -> bool {
        match ask.of_you {
            true => said.iter().all(|(option, _)| option != ask.option),
            false => self.value(ask.option, said).is_none(),
        }
    }

    /// What is shared out over nobody knows how many GPUs.
    fn uncounted(&self, said: &Said) -> Option<Open> {
        let counted = ["--gpus", "--dp"].iter().any(|option| self.value(option, said).is_some());
        let sharded = self.settings.iter().find(|setting| {
            setting.option == "--fsdp" || (setting.option == "--zero" && setting.value != "0")
        });
        // a file that is not there says so too, and its stage is answered by whoever runs this
        let left = self.asks.iter().find(|ask| ask.option == "--zero");
        let left = left.filter(|_| self.value("--zero", said) != Some("0"));
        let (what, origin) = match (sharded, left) {
            _ if counted => return None,
            (Some(setting), _) => (setting.written(), &setting.origin),
            (None, Some(ask)) => ("--zero".to_owned(), &ask.origin),
            (None, None) => return None,
        };
        let cause = format!("`{what}`, over how many GPUs is not said");
        Some(Open { origin: origin.clone(), cause, option: "--gpus" })
    }
}

/// Each cause once, with the keys that have it.
fn causes(open: &[Open]) -> String {
    let mut causes: Vec<(&str, Vec<&str>)> = Vec::new();
    for Open { origin, cause, .. } in open {
        match causes.iter_mut().find(|(known, _)| known == cause) {
            Some((_, keys)) => keys.push(&origin.key),
            None => causes.push((cause, vec![&origin.key])),
        }
    }
    let several = |(cause, keys): (&str, Vec<&str>)| match keys.as_slice() {
        [_] => cause.to_owned(),
        keys => format!("{cause} ({})", keys.join(", ")),
    };
    causes.into_iter().map(several).collect::<Vec<_>>().join("; ")
}

/// What would mend a problem, beside what mends others.
fn mend_of(problem: &Problem) -> String {
    let mend = problem.mend.as_deref().unwrap_or("check it");
    match &problem.place {
        Some(Place::Text { pointer, .. }) if !pointer.is_empty() => {
            format!("`{}`: {mend}", pointer.trim_start_matches('/').replace('/', "."))
        }
        _ => mend.to_owned(),
    }
}

/// How to say them.
fn mend(options: &[&str]) -> String {
    let written = |option: &&str| match *option {
        "--gpus" => "`--gpus N`".to_owned(),
        "--zero" => "`--zero STAGE`".to_owned(),
        option => format!("`{option}`"),
    };
    let flags: Vec<String> = options.iter().filter(|option| **option != "MODEL").map(written).collect();
    // the stage is asked for where a file is not there that has it
    let file =
        options.contains(&"--zero").then_some("give that file with `--from FILE` too, or only its stage");
    let model = options.contains(&"MODEL").then_some("name the model: `peakledger plan MODEL --from FILE`");
    let flags = match flags.as_slice() {
        [] => None,
        [only] => Some(format!("say it: add {only} to the command line")),
        [before @ .., last] => {
            Some(format!("say them: add {} and {last} to the command line", before.join(", ")))
        }
    };
    [model, file].into_iter().flatten().map(str::to_owned).chain(flags).collect::<Vec<_>>().join("; ")
}

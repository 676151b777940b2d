//! Parts of a model that are not trained: what is frozen by name.

use super::Builder;
use crate::options::{Frozen, refused};
use crate::torch::ModuleId;
use peakledger_input::{Problem, near};
use std::collections::BTreeSet;

impl Frozen {
    /// Whether a parameter of that full name is in the part.
    fn holds(&self, name: &str) -> bool {
        let Some(below) = name.strip_prefix(&self.prefix) else { return false };
        let Some((first, last)) = self.range else { return below.is_empty() || below.starts_with('.') };
        let index = below.strip_prefix('.').and_then(|below| below.split('.').next());
        index.and_then(|index| index.parse().ok()).is_some_and(|index: u32| (first..=last).contains(&index))
    }

    /// The last of the list of modules, where the range ends after that.
    fn beyond(&self, names: &[String]) -> Option<u32> {
        let (_, end) = self.range?;
        let index = |name: &String| -> Option<u32> {
            name.strip_prefix(&self.prefix)?.strip_prefix('.')?.split('.').next()?.parse().ok()
        };
        names.iter().filter_map(index).max().filter(|last| *last < end)
    }

    /// As it is written: `model.layers.0-15`.
    pub fn written(&self) -> String {
        match self.range {
            None => self.prefix.clone(),
            Some((first, last)) => format!("{}.{first}-{last}", self.prefix),
        }
    }
}

impl Builder {
    pub(super) fn is_frozen(&self, module: ModuleId, name: &str) -> bool {
        if self.frozen.is_empty() {
            return false;
        }
        let name = format!("{}.{name}", self.torch.tape.borrow().path(module));
        self.frozen.iter().any(|part| part.holds(&name))
    }

    /// Refuses a part that the model does not have, and a model of which nothing is trained.
    pub(super) fn check_frozen(&self) -> Result<(), Problem> {
        if self.frozen.is_empty() {
            return Ok(());
        }
        let names = self.names();
        let beyond = |part: &Frozen| Some((part.written(), part.prefix.clone(), part.beyond(&names)?));
        if let Some((part, list, last)) = self.frozen.iter().find_map(beyond) {
            let cause = format!("`{part}` goes beyond the last of `{list}`, which is {last}");
            return refused("--freeze", cause, "end the range there");
        }
        if let Some(part) = self.frozen.iter().find(|part| !names.iter().any(|name| part.holds(name))) {
            let cause = format!("the model has no parameter in `{}`", part.written());
            let mut modules = BTreeSet::new();
            for name in &names {
                modules.extend(name.match_indices('.').filter_map(|(end, _)| name.get(..end)));
            }
            let short = modules.iter().copied().filter(|name| name.matches('.').count() < 2);
            let has = format!("it has {}", short.collect::<Vec<_>>().join(", "));
            let mend = match near(&part.prefix, modules.iter().copied()) {
                Some(near) => format!("did you mean `{near}`? Otherwise {has}"),
                None => has,
            };
            return refused("--freeze", cause, mend);
        }
        if self.parameters.iter().all(|parameter| parameter.leaf.is_none()) {
            let problem = Problem::in_option("--freeze", "nothing of the model would be trained");
            return Err(problem.mend("freeze less of it"));
        }
        Ok(())
    }

    fn names(&self) -> Vec<String> {
        let tape = self.torch.tape.borrow();
        let named = self.parameters.iter().filter_map(|p| tape.parameters.get(p.id as usize));
        named.map(|parameter| format!("{}.{}", tape.path(parameter.module), parameter.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_module_and_what_is_below() {
        let part = |prefix: &str, range| Frozen { prefix: prefix.to_owned(), range };
        let embedding = part("model.embed", None);
        assert!(!embedding.holds("model.embed_tokens.weight"), "no module of that name");
        assert!(part("model.embed_tokens", None).holds("model.embed_tokens.weight"));
        let layers = part("model.layers", Some((1, 2)));
        let held =
            ["0", "1", "2", "3", "11"].map(|i| layers.holds(&format!("model.layers.{i}.mlp.up_proj.weight")));
        assert_eq!(held, [false, true, true, false, false]);
    }
}

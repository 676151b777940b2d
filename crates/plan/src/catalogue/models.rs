//! Models: by catalogue name, by path, or by their name in the local Hugging Face cache. Nothing is ever downloaded.

use peakledger_input::{CONFIG_LIMIT, Problem, Source, near, quoted};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};

/// A model of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its catalogue name.
    pub name: String,
    /// Its name on the Hugging Face hub.
    pub id: String,
    config: String,
}

impl Model {
    /// Its config.json, as far as it decides shapes.
    pub fn config(&self) -> Source {
        Source::from_text(format!("{} (catalogue)", self.name), self.config.as_str())
    }
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    id: String,
    config: Box<RawValue>,
}

/// The models that are known, by series and size.
pub fn models() -> Vec<Model> {
    // the file is ours and a test reads it
    let entries: Vec<Entry> = serde_json::from_str(include_str!("models.json")).unwrap_or_default();
    let model =
        |entry: Entry| Model { name: entry.name, id: entry.id, config: entry.config.get().to_owned() };
    entries.into_iter().map(model).collect()
}

/// A model's config and what to call it.
#[derive(Debug)]
pub struct ModelFile {
    /// What people call the model.
    pub name: String,
    /// Its config.json.
    pub config: Source,
}

/// Finds a model: a catalogue name, a config.json, a folder with one, or `org/name` in the local Hugging Face cache.
///
/// # Errors
/// Says that there is none, where it was looked for, and which name is near.
pub fn open_model(name: &str) -> Result<ModelFile, Problem> {
    let catalogue = models();
    let wanted = name.to_ascii_lowercase();
    if let Some(model) = catalogue.iter().find(|model| model.name == wanted || model.id == name) {
        return Ok(ModelFile { name: model.name.clone(), config: model.config() });
    }
    let path = Path::new(name);
    if name == "-" || path.is_file() {
        return open(name, path);
    }
    if path.is_dir() {
        let config = path.join("config.json");
        if !config.exists() {
            let problem = Problem::in_file(name, "the folder has no config.json");
            return Err(problem.mend("name the folder that the model was saved in"));
        }
        return open(name, &config);
    }
    if let Some(config) = cached(name) {
        return open(name, &config);
    }
    Err(unknown(name, &catalogue))
}

fn open(name: &str, path: &Path) -> Result<ModelFile, Problem> {
    Ok(ModelFile { name: name.to_owned(), config: Source::open(path, CONFIG_LIMIT)? })
}

/// `models--org--name/snapshots/REVISION/config.json` under the cache's folder; the revision that `refs/main` names, else
/// the last by name.
fn cached(name: &str) -> Option<PathBuf> {
    let (org, model) = name.split_once('/')?;
    if [org, model].iter().any(|part| part.is_empty() || part.starts_with('.') || part.contains(['/', '\\']))
    {
        return None;
    }
    let folder = cache_folder()?.join(format!("models--{org}--{model}"));
    let snapshots = folder.join("snapshots");
    let main = std::fs::read_to_string(folder.join("refs").join("main")).ok();
    let of_revision = |revision: &Path| Some(revision.join("config.json")).filter(|config| config.is_file());
    let main = main.and_then(|revision| of_revision(&snapshots.join(revision.trim())));
    main.or_else(|| {
        let entries = std::fs::read_dir(&snapshots).ok()?;
        let mut revisions: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        revisions.sort();
        revisions.iter().rev().find_map(|revision| of_revision(revision))
    })
}

/// Where `huggingface_hub` keeps what it downloaded.
fn cache_folder() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || var("HOME").or_else(|| var("USERPROFILE"));
    var("HF_HUB_CACHE")
        .or_else(|| Some(var("HF_HOME")?.join("hub")))
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("huggingface").join("hub")))
        .or_else(|| Some(home()?.join(".cache").join("huggingface").join("hub")))
}

fn unknown(name: &str, catalogue: &[Model]) -> Problem {
    let looks_like_path = name.ends_with(".json") || name.starts_with(['.', '/', '~']) || name.contains('\\');
    if looks_like_path {
        let problem = Problem::in_file(name, "no such file or folder");
        return problem.mend("name a config.json, a folder with one, or a model of `peakledger list models`");
    }
    let names = catalogue.iter().map(|model| model.name.as_str());
    let last = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let near = near(&last, names).map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    let where_ = if name.contains('/') {
        "it is not in the catalogue nor in the local Hugging Face cache, and nothing is downloaded; pass its config.json"
    } else {
        "`peakledger list models` shows the known ones; a config.json works too"
    };
    Problem::anywhere(format!("the model {} is not known", quoted(name))).mend(format!("{near}{where_}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Architecture;

    #[test]
    fn every_model_of_the_catalogue_is_read() {
        let models = models();
        assert!(models.len() >= 40);
        for model in models {
            let problem = Architecture::read(&model.config()).err();
            assert!(problem.is_none(), "{}: {}", model.name, problem.unwrap());
        }
    }
}

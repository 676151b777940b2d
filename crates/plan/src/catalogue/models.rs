//! Models: by catalogue name, by path, or by their name in the local Hugging Face cache. Nothing is ever downloaded.

use super::meant::meant_model;
use peakledger_input::{CONFIG_LIMIT, Input, Problem, Source, quoted};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A model of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its catalogue name.
    pub name: String,
    /// Its name on the Hugging Face hub.
    pub id: String,
    /// Tuned or otherwise trained models of the same shapes, by their names on the hub.
    pub also: Vec<String>,
    config: String,
}

impl Model {
    fn of(entry: Entry) -> Model {
        Model { name: entry.name, id: entry.id, also: entry.also, config: entry.config.get().to_owned() }
    }

    /// Whether it goes by this name, in whichever case.
    fn is_called(&self, name: &str) -> bool {
        let ids = self.also.iter().chain([&self.id, &self.name]);
        ids.into_iter().any(|id| id.eq_ignore_ascii_case(name))
    }

    /// Its config.json, as far as it decides shapes.
    pub fn config(&self) -> Source {
        Source::from_text(format!("{} (catalogue)", self.name), self.config.as_str())
    }
}

/// An entry of `models.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    id: String,
    #[serde(default)]
    also: Vec<String>,
    config: Box<RawValue>,
}

static MODELS: LazyLock<Vec<Model>> =
    LazyLock::new(|| match serde_json::from_str::<Vec<Entry>>(include_str!("models.json")) {
        Ok(entries) => entries.into_iter().map(Model::of).collect(),
        Err(error) => unreachable!("models.json is built in and read by a test: {error}"),
    });

/// The models that are known, by series and size.
pub fn models() -> &'static [Model] {
    &MODELS
}

/// A model's config and what to call it.
#[derive(Debug)]
pub struct ModelFile {
    /// What people call the model.
    pub name: String,
    /// Its config.json.
    pub config: Source,
    /// The file that the config was read from; nothing for the catalogue and for standard input.
    pub path: Option<PathBuf>,
}

/// Finds a model: a catalogue name, a config.json (`-` reads it from standard input, and a pipe is read as it comes), a
/// folder with one, or `org/name` in the local Hugging Face cache.
///
/// # Errors
/// Says that there is none, where it was looked for, and which name is near.
pub fn open_model(name: impl AsRef<OsStr>) -> Result<ModelFile, Problem> {
    let (input, name) = (Input::of(name.as_ref()), name.as_ref().to_string_lossy());
    let name = &*name;
    if let Some(model) = models().iter().find(|model| model.is_called(name)) {
        return Ok(ModelFile { name: model.name.clone(), config: model.config(), path: None });
    }
    let Some(path) = input.path() else {
        let config = Source::read(&input, CONFIG_LIMIT)?;
        return Ok(ModelFile { name: input.name().into_owned(), config, path: None });
    };
    if path.is_dir() {
        let config = path.join("config.json");
        if !config.exists() {
            let problem = Problem::in_file(name, "the folder has no config.json");
            return Err(problem.mend("name the folder that the model was saved in"));
        }
        return open(name, &config);
    }
    if path.exists() {
        return open(name, path);
    }
    if let Some(config) = cached(name) {
        return open(name, &config);
    }
    Err(unknown(name))
}

fn open(name: &str, path: &Path) -> Result<ModelFile, Problem> {
    let config = Source::open(path, CONFIG_LIMIT)?;
    Ok(ModelFile { name: name.to_owned(), config, path: Some(path.to_owned()) })
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

fn unknown(name: &str) -> Problem {
    let looks_like_path = name.ends_with(".json") || name.starts_with(['.', '/', '~']) || name.contains('\\');
    if looks_like_path {
        let problem = Problem::in_file(name, "no such file or folder");
        return problem.mend("name a config.json, a folder with one, or a model of `peakledger list models`");
    }
    let names: Vec<&str> = models().iter().map(|model| model.name.as_str()).collect();
    let meant = meant_model(name.rsplit('/').next().unwrap_or(name), &names);
    let where_ = if name.contains('/') {
        "it is not in the catalogue nor in the local Hugging Face cache, and nothing is downloaded; name its config.json in place of it"
    } else {
        "`peakledger list models` shows the known ones; a config.json works too"
    };
    Problem::anywhere(format!("the model {} is not known", quoted(name))).mend(format!("{meant}{where_}"))
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

    #[test]
    fn a_tuned_model_is_planned_as_what_it_was_tuned_from_and_no_name_is_two_models() {
        assert_eq!(open_model("meta-llama/Llama-3.1-8B-Instruct").unwrap().name, "llama-3.1-8b");
        assert_eq!(open_model("qwen/qwen2.5-7b-instruct").unwrap().name, "qwen2.5-7b");
        // Mixtral-8x22B-Instruct has a larger vocabulary than its base.
        assert!(open_model("mistralai/Mixtral-8x22B-Instruct-v0.1").is_err());
        let names = models().iter().flat_map(|model| model.also.iter().chain([&model.id, &model.name]));
        let mut names: Vec<String> = names.map(|name| name.to_ascii_lowercase()).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    /// Counted in the modules of transformers 5.24, built without data.
    #[test]
    fn parameters_are_those_of_transformers() {
        let counted = [
            ("gpt2", 124_439_808),
            ("gpt2-xl", 1_557_611_200),
            ("llama-2-7b", 6_738_415_616),
            ("llama-3.1-8b", 8_030_261_248),
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3.2-3b", 3_212_749_824),
            ("mistral-7b-v0.1", 7_241_732_096),
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen2.5-7b", 7_615_616_512),
            ("qwen3-0.6b", 596_049_920),
            ("qwen3-8b", 8_190_735_360),
            ("gemma-2-2b", 2_614_341_888),
            ("gemma-3-1b", 999_885_952),
            ("mixtral-8x7b", 46_702_792_704),
            ("qwen3-30b-a3b", 30_532_122_624),
            ("deepseek-v3", 671_026_404_352),
        ];
        for (name, parameters) in counted {
            let model = models().iter().find(|model| model.name == name).unwrap();
            assert_eq!(Architecture::read(&model.config()).unwrap().parameters(), parameters, "{name}");
        }
    }
}

//! What the name of an output says of its content, so that no file says one thing and holds another.

use peakledger_input::Problem;
use std::path::Path;

/// What an extension says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extension {
    Json,
    Csv,
    Markdown,
    Html,
    /// Text of any kind.
    Text,
    /// A kind of file that is not written here.
    Foreign(String),
    /// Nothing that is known: `llama-3.1-8b`, `plan.v2`.
    Open,
}

/// Extensions of other kinds of files.
const FOREIGN: &str = "pdf png jpg jpeg gif svg webp bmp tif tiff eps ps doc docx odt rtf ppt pptx xls xlsx ods tsv parquet \
     feather arrow h5 hdf5 npy npz pickle pkl pt pth bin safetensors yaml yml toml xml ini tex rst ipynb py zip gz tgz \
     tar xz zst bz2 7z sqlite db mp4";

impl Extension {
    pub(crate) fn of(path: &Path) -> Extension {
        let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
        match extension.as_deref().and_then(|extension| extension.to_str()) {
            Some("json") => Extension::Json,
            Some("csv") => Extension::Csv,
            Some("md" | "markdown") => Extension::Markdown,
            Some("html" | "htm") => Extension::Html,
            Some("txt" | "text" | "log" | "out") => Extension::Text,
            Some(other) if FOREIGN.split(' ').any(|known| known == other) => {
                Extension::Foreign(other.to_owned())
            }
            _ => Extension::Open,
        }
    }

    /// As it is written, of those that say what a file holds.
    fn written(&self) -> Option<&str> {
        match self {
            Extension::Json => Some("json"),
            Extension::Csv => Some("csv"),
            Extension::Markdown => Some("md"),
            Extension::Html => Some("html"),
            Extension::Text => Some("txt"),
            Extension::Foreign(other) => Some(other),
            Extension::Open => None,
        }
    }

    /// Refuses a kind of file that is not written here; a page is written where there are pictures.
    pub(crate) fn check_known(&self, has_pictures: bool) -> Result<(), Problem> {
        let Extension::Foreign(other) = self else { return Ok(()) };
        let problem = Problem::in_option("--output", format!("no `.{other}` file is written here"));
        let page = if has_pictures { "`.html`, " } else { "" };
        Err(problem.mend(format!("name a file that ends in {page}`.json`, `.csv`, `.md` or `.txt`")))
    }

    /// Refuses an extension that says another format than that which is asked for. Text may be any.
    pub(crate) fn check_format(&self, format: &Extension) -> Result<(), Problem> {
        let (Some(of_file), Some(of_format)) = (self.written(), format.written()) else { return Ok(()) };
        if self == format || *self == Extension::Text && *format != Extension::Html {
            return Ok(());
        }
        let cause = format!("the file ends in `.{of_file}`, and its content would be `.{of_format}`");
        Err(Problem::in_option("--output", cause).mend(format!("name a file that ends in `.{of_format}`")))
    }

    /// Refuses an extension that is not a ledger's.
    pub(crate) fn check_ledger(&self) -> Result<(), Problem> {
        let other = match self {
            Extension::Json | Extension::Open => return Ok(()),
            other => other.written().unwrap_or_default(),
        };
        let cause = format!("the file ends in `.{other}`, and a ledger is JSON");
        let mend = "name a file that ends in `.json`";
        Err(Problem::in_option("--save", cause).mend(match self {
            Extension::Html => format!("{mend}; `--output` writes the page"),
            _ => mend.to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_say() {
        for (name, says) in [
            ("a.json", Extension::Json),
            ("A.HTM", Extension::Html),
            ("notes.txt", Extension::Text),
            ("plan", Extension::Open),
            ("llama-3.1-8b", Extension::Open),
            ("a.v2", Extension::Open),
            ("a.json.gz", Extension::Foreign("gz".to_owned())),
        ] {
            assert_eq!(Extension::of(Path::new(name)), says, "{name}");
        }
    }
}

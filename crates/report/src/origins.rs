//! Where the options of a plan came from, if configs of training frameworks were read: what each file said, what of it was
//! not read or is not planned, and the same as one command line.

use serde::Serialize;

/// What configs said.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Origins {
    /// The files, in the order in which they were read.
    pub files: Vec<OriginFile>,
    /// The options that hold, but for those of the command line.
    pub options: Vec<OriginOption>,
    /// Keys that may change memory and that nobody here knows.
    pub not_read: Vec<NotRead>,
    /// What the files ask for and the plan leaves out.
    pub not_planned: Vec<NotPlanned>,
    /// The command line that plans the same without the files.
    pub command: String,
}

/// A file that was read.
#[derive(Clone, Debug, Serialize)]
pub struct OriginFile {
    /// As the user named it.
    pub file: String,
    /// Whose config it is.
    pub kind: &'static str,
}

/// A key of a file.
#[derive(Clone, Debug, Serialize)]
pub struct OriginKey {
    /// As the user named it.
    pub file: String,
    /// Counted from 1; nothing for what was left out.
    pub line: Option<usize>,
    /// Its path, or why what was left out means something.
    pub key: String,
}

/// A key that nobody here knows.
#[derive(Clone, Debug, Serialize)]
pub struct NotRead {
    /// Which.
    #[serde(flatten)]
    pub origin: OriginKey,
    /// The key that it may be a slip for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meant: Option<String>,
}

/// An option that a file set.
#[derive(Clone, Debug, Serialize)]
pub struct OriginOption {
    /// `--seq-len`
    pub option: &'static str,
    /// Its value, as the command line has it.
    pub value: String,
    /// Both, as they can be typed.
    #[serde(skip)]
    pub written: String,
    /// By what.
    #[serde(flatten)]
    pub origin: OriginKey,
}

/// Something that a file asks for and the plan leaves out.
#[derive(Clone, Debug, Serialize)]
pub struct NotPlanned {
    /// By what.
    #[serde(flatten)]
    pub origin: OriginKey,
    /// What is left out, and what is planned instead.
    pub what: String,
}

/// Beside a verdict no more keys than these are named.
const MOST_SAID: usize = 3;

impl OriginKey {
    /// `sequence_len, line 4`
    fn place(&self) -> String {
        match self.line {
            Some(line) => format!("{}, line {line}", self.key),
            None => self.key.clone(),
        }
    }
}

impl Origins {
    /// Beside a verdict: that files ask for what its figure lacks, where they do.
    pub(crate) fn left_out(&self) -> Option<String> {
        let mut keys: Vec<&str> = self.not_planned.iter().map(|not| not.origin.key.as_str()).collect();
        keys.dedup();
        let keys: Vec<String> = keys.into_iter().map(|key| format!("`{key}`")).collect();
        let are = if keys.len() == 1 { "is" } else { "are" };
        (!keys.is_empty()).then(|| {
            format!("{} {are} not planned, or otherwise than asked for: see `unplanned`", keys.join(", "))
        })
    }

    /// The same of keys that were not understood.
    pub(crate) fn not_understood(&self) -> Option<String> {
        let said = |key: &NotRead| match &key.meant {
            Some(meant) => format!("`{}` (did you mean `{meant}`?)", key.origin.key),
            None => format!("`{}`", key.origin.key),
        };
        let keys: Vec<String> = self.not_read.iter().take(MOST_SAID).map(said).collect();
        let more = match self.not_read.len().saturating_sub(keys.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let are = if self.not_read.len() == 1 { "is" } else { "are" };
        (!keys.is_empty()).then(|| {
            let keys = keys.join(", ");
            format!("{keys}{more} {are} not understood, and may change memory: see `not read`")
        })
    }

    /// What is said of it, a topic and a text for each line.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        for OriginFile { file, kind } in &self.files {
            let options = self.options.iter().filter(|option| option.origin.file == *file);
            let said = options.map(|set| format!("{} ({})", set.written, set.origin.place()));
            let said = said.collect::<Vec<_>>().join(", ");
            let said = if said.is_empty() { "nothing that holds" } else { &said };
            lines.push(("from", format!("{file} ({kind}): {said}")));
        }
        for OriginFile { file, .. } in &self.files {
            let keys = self.not_read.iter().filter(|key| key.origin.file == *file);
            let keys = keys.map(|key| key.origin.place());
            let keys = keys.collect::<Vec<_>>().join("; ");
            if !keys.is_empty() {
                lines.push(("not read", format!("{file}: {keys}")));
            }
        }
        for NotPlanned { origin, what } in &self.not_planned {
            lines.push(("unplanned", format!("{} ({}): {what}", origin.file, origin.place())));
        }
        lines
    }
}

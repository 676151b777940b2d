//! What a file is, by its first bytes: so that each kind goes to its reader, and what has none is told what it is.

use crate::timeline::is_timeline;
use peakledger_input::{Binary, Problem};

/// What can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A pickle: a memory snapshot, if it is what it should be.
    Pickle,
    /// JSON that is no memory timeline: a profiler's trace, a ledger, a config.
    Json,
    /// An exported memory timeline, or its picture.
    Timeline,
}

const DUMP: &str = "write a snapshot with `torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")`";

/// What a file is.
///
/// # Errors
/// It is none of those that are read; the sentence says what it is instead.
pub fn content(file: &Binary) -> Result<Content, Problem> {
    let head = file.head();
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let starts = |with: &str| text.get(..with.len()).is_some_and(|h| h.eq_ignore_ascii_case(with.as_bytes()));
    let refused = |cause: &str, mend: &str| Err(file.problem(cause).mend(mend));
    match head {
        [0x80, ..] => return Ok(Content::Pickle),
        [b'P', b'K', 3 | 5, 4 | 6, ..] => return Err(zip(file)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            return refused(
                "a zstd archive; gzip is unpacked on the way, zstd is not",
                "unpack it first: `zstd -d`",
            );
        }
        [0xfd, b'7', b'z', ..] => return refused("an xz archive", "unpack it first: `unxz`"),
        [b'B', b'Z', b'h', ..] => return refused("a bzip2 archive", "unpack it first: `bunzip2`"),
        _ => {}
    }
    if head.get(257..262) == Some(b"ustar") {
        let end = head.iter().position(|byte| *byte == 0).unwrap_or(0).min(100);
        let member = String::from_utf8_lossy(head.get(..end).unwrap_or_default()).into_owned();
        return refused(&format!("a tar archive (it holds `{member}`)"), "unpack it first: `tar -xf`");
    }
    if is_timeline(text) {
        return Ok(Content::Timeline);
    }
    if starts("<!doctype") || starts("<html") {
        return refused("an HTML page", "download the raw file: this is the page that shows it");
    }
    if starts("version https://git-lfs.github.com/spec") {
        return refused("a git-lfs pointer, not the file itself", "fetch the file: `git lfs pull`");
    }
    match text {
        text if matches!(text, [b'{' | b'[', ..]) && !is_line_of_a_log(text) => Ok(Content::Json),
        // before what only looks like a pickle of protocol 0: the beginning of a line of a log
        text if has_oom_message(text) => refused(
            "a text with an out-of-memory message in it",
            "`peakledger read --oom-message FILE` explains it",
        ),
        // how pickles of protocol 0 and 1 begin; the machine says so
        [b'(' | b'}' | b']' | b'c' | b'I' | b'L' | b'F' | b'N', ..] if !head.is_empty() => {
            Ok(Content::Pickle)
        }
        text if is_plain(text) => refused(
            "a text, neither a pickle nor JSON",
            &format!("{DUMP}; if it is a log of a run that ran out of memory, add `--oom-message`"),
        ),
        _ => refused("neither a pickle nor JSON", DUMP),
    }
}

/// Whether what begins like JSON is a line of a log: a dict that Python printed, with more lines after it, or a time, a rank or
/// a name in brackets.
fn is_line_of_a_log(text: &[u8]) -> bool {
    let (line, rest) =
        text.iter().position(|byte| *byte == b'\n').map_or((text, &[][..]), |at| text.split_at(at));
    match line {
        [b'{', inner @ ..] => {
            let is_printed =
                inner.trim_ascii_start().starts_with(b"'") && line.trim_ascii_end().ends_with(b"}");
            is_printed && !rest.trim_ascii().is_empty()
        }
        [b'[', inner @ ..] => {
            let word = inner.trim_ascii_start();
            let end = word.iter().position(|byte| matches!(byte, b',' | b']') || byte.is_ascii_whitespace());
            let word = String::from_utf8_lossy(word.get(..end.unwrap_or(word.len())).unwrap_or_default());
            !word.is_empty()
                && !word.starts_with(['{', '[', '"', '\''])
                && !matches!(&*word, "true" | "false" | "null")
                && word.parse::<f64>().is_err()
        }
        _ => false,
    }
}

/// Whether torch says in it that memory ran out.
fn has_oom_message(text: &[u8]) -> bool {
    let said = ["OutOfMemoryError", "out of memory. Tried to allocate"];
    let said = |line: &str| said.iter().any(|words| line.contains(words));
    is_plain(text) && String::from_utf8_lossy(text).lines().any(said)
}

/// Whether it is a text for people: no byte of it is a control character but those of lines.
fn is_plain(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| *byte >= b' ' || byte.is_ascii_whitespace() || *byte == 0x1b)
}

/// What a zip archive is: a checkpoint of torch's, or something that was packed.
fn zip(file: &Binary) -> Problem {
    let head = file.head();
    let mut names: Vec<String> = Vec::new();
    let mut rest = head;
    while let Some(at) = rest.windows(4).position(|bytes| bytes == b"PK\x03\x04") {
        rest = rest.get(at..).unwrap_or_default();
        let length =
            rest.get(26..28).map_or(0, |two| two.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b)));
        if let Some(name) = rest.get(30..30 + length) {
            names.push(String::from_utf8_lossy(name).into_owned());
        }
        rest = rest.get(4..).unwrap_or_default();
    }
    if names.iter().any(|name| name.ends_with("data.pkl")) {
        return file.problem("this is a PyTorch checkpoint, not a memory snapshot").mend(DUMP);
    }
    let pickles: Vec<String> = names
        .iter()
        .filter(|name| [".pickle", ".pkl", ".gz", ".json"].iter().any(|end| name.ends_with(end)))
        .take(5)
        .map(|name| format!("`{name}`"))
        .collect();
    let holds =
        if pickles.is_empty() { String::new() } else { format!(" (it holds {})", pickles.join(", ")) };
    file.problem(format!("a zip archive{holds}")).mend("unpack it first: `unzip`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_file_is_told_what_it_is() {
        let of = |bytes: &[u8]| content(&Binary::from_bytes("x", bytes.to_vec()).unwrap());
        assert_eq!(of(b"\x80\x04}."), Ok(Content::Pickle));
        assert_eq!(of(b" {\"traceEvents\": []}"), Ok(Content::Json));
        assert_eq!(of(b"[[1, 2], [[0]]]"), Ok(Content::Timeline));
        for json in ["[]", "[1, 2]", "[-1e5,\n2]", "[null]", "{'a': 1}", "[{'a': 1}]", "["] {
            assert_eq!(of(json.as_bytes()), Ok(Content::Json), "{json}");
        }
        assert_eq!(of(b"<html><img src='data:image/png;base64,iVBO'>"), Ok(Content::Timeline));
        let mut tar = vec![0; 512];
        tar[..6].copy_from_slice(b"a.pkl\0");
        tar[257..262].copy_from_slice(b"ustar");
        let mut checkpoint = b"PK\x03\x04".to_vec();
        checkpoint.resize(30, 0);
        checkpoint[26] = 16;
        checkpoint.extend(b"archive/data.pklX");
        let mut packed = b"PK\x03\x04".to_vec();
        packed.resize(30, 0);
        packed[26] = 8;
        packed.extend(b"a.pickle");
        for (bytes, says) in [
            (
                checkpoint.as_slice(),
                "a PyTorch checkpoint, not a memory snapshot\n  help: write a snapshot with `torch.cuda.memory._dump_snapshot",
            ),
            (packed.as_slice(), "a zip archive (it holds `a.pickle`)\n  help: unpack it first"),
            (tar.as_slice(), "a tar archive (it holds `a.pkl`)\n  help: unpack it first"),
            (b"\x28\xb5\x2f\xfd", "a zstd archive"),
            (b"<!DOCTYPE html>", "an HTML page"),
            (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
            (b"\x00\x01", "neither a pickle nor JSON"),
            (b"step 1\nstep 2", "a text, neither a pickle nor JSON"),
            (
                b"{'loss': 1.5}\n{'loss': 1.4}\n",
                "a text, neither a pickle nor JSON\n  help: write a snapshot with",
            ),
            (b"[2026-11-30 12:00:01] step 1\n[2026-11-30 12:00:02] step 2", "add `--oom-message`"),
            (
                b"{'loss': 1.5}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
                "`peakledger read --oom-message FILE` explains it",
            ),
            (
                b"Nov 30 [rank0]: torch.OutOfMemoryError: CUDA out of memory.",
                "`peakledger read --oom-message FILE` explains it",
            ),
        ] {
            let said = of(bytes).unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
    }
}

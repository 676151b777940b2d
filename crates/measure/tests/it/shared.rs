//! Where the real snapshots lie, if they are here.

use std::io::Write;
use std::path::PathBuf;

/// The folder of the real snapshots. Says so where there is none.
pub(crate) fn snapshots() -> Option<PathBuf> {
    let root = std::env::var_os("PEAKLEDGER_SHARED").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")));
    let folder = root.join("data/snapshots");
    if folder.is_dir() {
        return Some(folder);
    }
    say(&format!("SKIPPED: no real snapshots at {}; the project's own still run", folder.display()));
    None
}

/// Says a line aloud: the test runner keeps what is printed to itself.
pub(crate) fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

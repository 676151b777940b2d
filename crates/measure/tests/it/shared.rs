//! Where the real files lie, if they are here.

use std::io::Write;
use std::path::PathBuf;

/// The folder of the real snapshots.
pub(crate) fn snapshots() -> Option<PathBuf> {
    data("snapshots")
}

/// A folder or file under the shared data. Says so aloud where there is none.
pub(crate) fn data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("PEAKLEDGER_SHARED").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")));
    let path = root.join("data").join(name);
    if path.exists() {
        return Some(path);
    }
    say(&format!("SKIPPED: nothing at {}; the files made in the tests still run", path.display()));
    None
}

/// Says a line aloud: the test runner keeps what is printed to itself.
pub(crate) fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

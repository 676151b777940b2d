//! What peakledger says of the same ledgers, for the tests to compare with.

use crate::{CATEGORIES, DEVICES, PHASES, State};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The tool's answer to a question about ledgers, each a file `NAME.json`, as rows of cells. Nothing where it refuses, and
/// nothing at all, said aloud, where there is no such command.
pub fn peakledger(words: &[&str], ledgers: &[(&str, &[State])]) -> Option<Option<Vec<Vec<String>>>> {
    let folder = Folder::new();
    for (name, states) in ledgers {
        std::fs::write(folder.0.join(format!("{name}.json")), json(states)).expect("a temporary file");
    }
    let mut command = Command::new("peakledger");
    command.args(words).args(["--format", "csv"]).current_dir(&folder.0).stdin(Stdio::null());
    let Ok(answer) = command.output() else {
        eprintln!("SKIPPED: no peakledger on the PATH to compare with: cargo install --path crates/cli");
        return None;
    };
    let text = String::from_utf8(answer.stdout).expect("text");
    let rows = text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect());
    Some(answer.status.success().then(|| rows.collect()))
}

/// A folder that goes when it is no longer needed.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("peakledger-course-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// A ledger file.
fn json(states: &[State]) -> String {
    let state = |state: &State| {
        let State { name, category, size_mb, device, start_phase, end_phase, persistent } = state;
        format!(
            r#"{{"name": {name:?}, "category": {category:?}, "size_mb": {size_mb}, "device": {device:?}, "start_phase": {start_phase:?}, "end_phase": {end_phase:?}, "persistent": {persistent}}}"#
        )
    };
    format!("[{}]", states.iter().map(state).collect::<Vec<_>>().join(",\n"))
}

/// Ledgers by chance, the same on every run; many of their totals are equal.
pub fn some_ledgers(count: u64) -> Vec<Vec<State>> {
    (0..count).map(|seed| some_ledger(&mut Dice(seed))).collect()
}

fn some_ledger(dice: &mut Dice) -> Vec<State> {
    let state = |number: usize, dice: &mut Dice| {
        let (one, other) = (dice.roll(PHASES.len()), dice.roll(PHASES.len()));
        State {
            name: format!("state {number}"),
            category: CATEGORIES[dice.roll(CATEGORIES.len())].to_owned(),
            size_mb: [0, 100, 200, 300][dice.roll(4)],
            device: DEVICES[dice.roll(DEVICES.len())].to_owned(),
            start_phase: PHASES[one.min(other)].to_owned(),
            end_phase: PHASES[one.max(other)].to_owned(),
            persistent: dice.roll(2) == 0,
        }
    };
    (0..dice.roll(9)).map(|number| state(number, dice)).collect()
}

/// Steele, Lea and Flood's SplitMix64: numbers by chance without a library.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }
}

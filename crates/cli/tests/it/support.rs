//! Runs the binary in a folder of its own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The seed's sample.
pub(crate) const SAMPLE: &str = r#"[
  {"name": "parameters", "category": "parameter", "size_mb": 800.0, "start_phase": "load", "end_phase": "zero_grad", "device": "gpu", "persistent": true},
  {"name": "optimizer_state", "category": "optimizer_state", "size_mb": 600.0, "start_phase": "load", "end_phase": "zero_grad", "device": "gpu", "persistent": true},
  {"name": "activations", "category": "activation", "size_mb": 300.0, "start_phase": "forward", "end_phase": "backward", "device": "gpu", "persistent": false},
  {"name": "gradients", "category": "gradient", "size_mb": 400.0, "start_phase": "backward", "end_phase": "update", "device": "gpu", "persistent": false},
  {"name": "forward_workspace", "category": "workspace", "size_mb": 200.0, "start_phase": "forward", "end_phase": "forward", "device": "gpu", "persistent": false},
  {"name": "collective_buffer", "category": "communication_buffer", "size_mb": 100.0, "start_phase": "backward", "end_phase": "backward", "device": "gpu", "persistent": false},
  {"name": "offloaded_activation", "category": "activation", "size_mb": 250.0, "start_phase": "forward", "end_phase": "backward", "device": "cpu", "persistent": false}
]"#;

/// A folder in which the binary runs.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
    env: Vec<(String, String)>,
}

/// What a run left behind.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench { folder: tempfile::tempdir().unwrap(), env: Vec::new() }
    }

    /// With the sample in `ledger.json`.
    pub(crate) fn with_sample() -> Bench {
        Bench::new().file("ledger.json", SAMPLE)
    }

    pub(crate) fn file(self, name: &str, content: impl AsRef<[u8]>) -> Bench {
        std::fs::write(self.path(name), content).unwrap();
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Bench {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// The names of the files in the folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peakledger"));
        command.args(arguments.split_whitespace()).current_dir(self.folder.path());
        command.env_remove("COLUMNS").env_remove("NO_COLOR").envs(self.env.iter().cloned());
        command
    }

    pub(crate) fn run(&self, arguments: &str) -> Ran {
        Ran::of(self.command(arguments).stdin(Stdio::null()).output().unwrap())
    }

    /// With this on standard input.
    pub(crate) fn pipe(&self, arguments: &str, input: &str) -> Ran {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // a run that refuses its arguments does not wait for what is piped in
        let _closed = child.stdin.take().unwrap().write_all(input.as_bytes());
        Ran::of(child.wait_with_output().unwrap())
    }

    /// What it answers, which it must.
    pub(crate) fn answer(&self, arguments: &str) -> String {
        let ran = self.run(arguments);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{arguments}");
        ran.out
    }

    /// What a shell is given where a command is pasted into it.
    pub(crate) fn pasted(&self, command: &str) -> String {
        let binary = Path::new(env!("CARGO_BIN_EXE_peakledger"));
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", binary.parent().unwrap().display());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(self.folder.path()).env("PATH", path).env_remove("COLUMNS");
        let ran = Ran::of(shell.output().unwrap());
        assert_eq!(ran.code, Some(0), "{command}: {}", ran.err);
        ran.out
    }

    /// What it says against it, which it must, and nothing on standard output.
    pub(crate) fn refusal(&self, arguments: &str) -> String {
        let ran = self.run(arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments}: {}", ran.err);
        ran.err
    }
}

impl Ran {
    fn of(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

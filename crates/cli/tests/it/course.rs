//! The course proves both of its halves: an exercise as it is shipped fails, and says what to write; solved, it passes, and
//! agrees with the tool. What comes after it still fails.

use crate::pages::repository;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const EXERCISES: [&str; 4] = ["ex1_validate", "ex2_summarise", "ex3_peak", "ex4_compare"];

fn course() -> PathBuf {
    std::fs::canonicalize(repository().join("docs/course")).unwrap()
}

/// A command that finds the tool.
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_peakledger")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(binary.to_owned()).chain(std::env::split_paths(&path));
    let mut command = Command::new(program);
    command.env("PATH", std::env::join_paths(all).unwrap());
    command
}

/// All that was said, and whether it went well.
fn said(ran: &Output) -> (bool, String) {
    let text = [&ran.stdout, &ran.stderr].map(|out| String::from_utf8_lossy(out).into_owned());
    (ran.status.success(), text.concat())
}

/// What an exercise says that is not done.
fn undone(number: usize) -> String {
    format!("exercise {number} is not done yet: write `")
}

#[test]
fn each_exercise_in_python_fails_until_it_is_written() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: no python3, so the exercises in Python are not run");
        return;
    }
    let python = course().join("python");
    for done in 0..=EXERCISES.len() {
        // a learner's folder in which the first of them are solved
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("__init__.py"), "").unwrap();
        for (at, exercise) in EXERCISES.iter().enumerate() {
            let half = if at < done { "solutions" } else { "exercises" };
            let file = format!("{exercise}.py");
            std::fs::copy(python.join(half).join(&file), own.join(&file)).unwrap();
        }
        for (at, exercise) in EXERCISES.iter().enumerate() {
            let mut run = command("python3");
            run.args(["-B", "-m", "unittest", &format!("test_{exercise}")]).current_dir(&python);
            run.env("COURSE", "own").env("PYTHONPATH", folder.path());
            let (passes, text) = said(&run.output().unwrap());
            assert_eq!(passes, at < done, "{exercise} with {done} solved\n{text}");
            match passes {
                true => assert!(!text.contains("skipped"), "{text}"),
                false => assert!(text.contains(&undone(at + 1)), "{exercise} says not what to do\n{text}"),
            }
        }
    }
}

#[test]
fn each_exercise_in_rust_fails_until_it_is_written() {
    let run = |more: &[&str]| {
        let mut run = command(env!("CARGO"));
        run.args(["test", "--locked", "--offline", "--no-fail-fast"]).args(more);
        run.current_dir(course().join("rust"));
        run.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("course"));
        said(&run.output().unwrap())
    };
    for (at, exercise) in EXERCISES.iter().enumerate() {
        let (passes, text) = run(&["--test", exercise]);
        assert!(!passes && text.contains(&undone(at + 1)), "{exercise}\n{text}");
        assert!(
            text.contains("test result: FAILED. 0 passed"),
            "{exercise} passes before it is written\n{text}"
        );
    }
    let (passes, text) = run(&["--features", "solutions"]);
    assert!(passes && !text.contains("SKIPPED"), "{text}");
}

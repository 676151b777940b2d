//! CSV tables.

use crate::Look;
use std::io;

/// Writes titles and rows with CSV's quoting.
pub(crate) fn write<R: IntoIterator<Item = Vec<String>>>(
    out: &mut dyn io::Write,
    look: &Look,
    titles: &[&str],
    rows: R,
) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(titles).map_err(of_writing)?;
    for row in rows {
        writer.write_record(row.into_iter().map(|cell| look.cell(cell))).map_err(of_writing)?;
    }
    writer.flush()
}

/// What went wrong with the file below: its kind is lost where csv's own conversion wraps it, and with it that a reader has gone.
fn of_writing(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_gone_is_told_from_a_full_disk() {
        struct Closed;
        impl io::Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        // more than csv keeps before it writes
        let rows = vec![vec!["x".repeat(100_000)]; 2];
        let error = write(&mut Closed, &Look::default(), &["name"], rows).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn names_act_on_no_terminal_and_stay_what_they_are_in_a_file() {
        let csv = |terminal: bool| {
            let (mut out, look) = (Vec::new(), Look { terminal, ..Look::default() });
            write(&mut out, &look, &["name"], [vec!["\u{1b}[31m,\u{9b}\u{202e}\n".to_owned()]]).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(csv(false), "name\n\"\u{1b}[31m,\u{9b}\u{202e}\n\"\n");
        assert_eq!(csv(true), "name\n\"\\u{1b}[31m,\\u{9b}\\u{202e}\\n\"\n");
    }
}

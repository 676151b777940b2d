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
    writer.write_record(titles)?;
    for row in rows {
        writer.write_record(row.into_iter().map(|cell| look.cell(cell)))?;
    }
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

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

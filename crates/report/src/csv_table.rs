//! CSV tables.

use std::io;

/// Writes titles and rows with CSV's quoting.
pub(crate) fn write<R: IntoIterator<Item = Vec<String>>>(
    out: &mut dyn io::Write,
    titles: &[&str],
    rows: R,
) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(titles)?;
    for row in rows {
        writer.write_record(row)?;
    }
    writer.flush()
}

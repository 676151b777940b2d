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

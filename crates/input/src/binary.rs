//! Large files that are read in pieces: a snapshot or a trace from a path or standard input, unpacked on the way where
//! it is gzipped, and never held whole.
//!
//! What a file is shows in its first bytes ([`Binary::head`]), before a reader takes it. A file that unpacks to more than
//! [`MOST_RATIO`] times its size is refused while it is read, in constant memory.

use crate::opened::{Opened, Regular, nothing_came, standard_input, unreadable};
use crate::problem::Problem;
use crate::source::{Input, Limit};
use flate2::bufread::MultiGzDecoder;
use peakledger_core::Bytes;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Stdin};

/// Snapshots and traces: up to 64 GiB as they lie on the disk.
pub const MEASURED_LIMIT: Limit = Limit { what: "a measurement", bytes: Bytes::new(64 << 30) };
/// A gzipped file holds no more than so many times its own size.
pub const MOST_RATIO: u64 = 200;

/// How much is looked at to see what a file is.
const HEAD: usize = 1 << 16;
/// Less than this may unpack from any few bytes.
const RATIO_FREE: u64 = 1 << 20;

/// A file or standard input, read from its beginning to its end.
pub struct Binary {
    name: String,
    size: Option<u64>,
    before: Option<Metadata>,
    head: Vec<u8>,
    given: usize,
    body: Body,
    unpacked: u64,
    failed: Option<Problem>,
}

enum Body {
    Plain(Raw),
    Gzip(Box<MultiGzDecoder<BufReader<Raw>>>),
}

/// What the bytes come from, and how many came.
struct Raw {
    from: Origin,
    read: u64,
    most: u64,
}

enum Origin {
    File(File),
    Stdin(Stdin),
    Memory(io::Cursor<Vec<u8>>),
    Reader(Box<dyn Read + Send>),
}

impl Read for Raw {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.from {
            Origin::File(file) => file.read(into),
            Origin::Stdin(stdin) => stdin.lock().read(into),
            Origin::Memory(bytes) => bytes.read(into),
            Origin::Reader(reader) => reader.read(into),
        }?;
        self.read = self.read.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        if self.read > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(read)
    }
}

impl Binary {
    /// Opens a file, a pipe or standard input.
    ///
    /// # Errors
    /// As [`Source::open`](crate::Source::open), but that any bytes are taken.
    pub fn open(input: &Input, limit: Limit) -> Result<Binary, Problem> {
        let name = input.name().into_owned();
        let most = limit.bytes.get();
        let path = match input {
            Input::Stdin => {
                let stdin = standard_input(&name)?;
                return Binary::over(name, Origin::Stdin(stdin), None, None, most);
            }
            Input::File(path) => path,
        };
        let Regular { file, before, .. } = match Opened::at(path, &name, limit)? {
            Opened::Regular(regular) => regular,
            Opened::Pipe(pipe) => return Binary::over(name, Origin::File(pipe), None, None, most),
        };
        let size = before.len();
        if size == 0 {
            return Err(Problem::in_file(name, "an empty file").mend(EMPTY));
        }
        Binary::over(name, Origin::File(file), Some(size), Some(before), most)
    }

    /// The bytes of a file that lie in memory.
    ///
    /// # Errors
    /// They are none.
    pub fn from_bytes(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Result<Binary, Problem> {
        let bytes = bytes.into();
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Binary::over(name.into(), Origin::Memory(io::Cursor::new(bytes)), Some(size), None, u64::MAX)
    }

    /// The bytes that a reader gives, which are never held whole.
    ///
    /// # Errors
    /// It fails, or gives none.
    pub fn from_reader(
        name: impl Into<String>,
        reader: impl Read + Send + 'static,
    ) -> Result<Binary, Problem> {
        Binary::over(name.into(), Origin::Reader(Box::new(reader)), None, None, u64::MAX)
    }

    fn over(
        name: String,
        from: Origin,
        size: Option<u64>,
        before: Option<Metadata>,
        most: u64,
    ) -> Result<Binary, Problem> {
        let mut raw = BufReader::with_capacity(HEAD, Raw { from, read: 0, most });
        let first = raw.fill_buf().map_err(|error| unreadable(&name, &error))?;
        let (head, body) = match first.starts_with(&[0x1f, 0x8b]) {
            true => (Vec::new(), Body::Gzip(Box::new(MultiGzDecoder::new(raw)))),
            false => (raw.buffer().to_vec(), Body::Plain(raw.into_inner())),
        };
        let mut binary = Binary { name, size, before, head, given: 0, body, unpacked: 0, failed: None };
        binary.fill_head()?;
        if binary.head.is_empty() {
            return Err(match binary.size {
                Some(_) => Problem::in_file(binary.name, "an empty file").mend(EMPTY),
                None => nothing_came(&binary.name),
            });
        }
        Ok(binary)
    }

    fn fill_head(&mut self) -> Result<(), Problem> {
        let mut piece = [0; 4096];
        while self.head.len() < HEAD {
            match self.body_read(&mut piece) {
                Ok(0) => break,
                Ok(read) => self.head.extend_from_slice(piece.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // what can be said of a damaged archive is said where the reader comes to it
                Err(_) if !self.head.is_empty() => break,
                Err(error) => return Err(self.explain(&error)),
            }
        }
        Ok(())
    }

    /// What the user calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it passes by once, as a pipe and standard input do.
    pub fn passes_once(&self) -> bool {
        self.size.is_none()
    }

    /// How large the file is as it lies on the disk, where it is a file.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Whether it is unpacked on the way.
    pub fn is_packed(&self) -> bool {
        matches!(self.body, Body::Gzip(_))
    }

    /// Its first bytes, once unpacked: enough to see what it is.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// How many bytes were taken from the disk so far.
    pub fn consumed(&self) -> u64 {
        match &self.body {
            Body::Plain(raw) => raw.read,
            Body::Gzip(archive) => archive.get_ref().get_ref().read,
        }
    }

    /// A problem with the file as a whole.
    pub fn problem(&self, cause: impl Into<String>) -> Problem {
        Problem::in_file(self.name.clone(), cause)
    }

    /// What is wrong where it could not be read on.
    pub fn explain(&self, error: &io::Error) -> Problem {
        match &self.failed {
            Some(problem) => problem.clone(),
            None => unreadable(&self.name, error),
        }
    }

    /// Whether it is still the file that was opened; asked once all of it was read.
    ///
    /// # Errors
    /// It changed meanwhile.
    pub fn check_unchanged(&self) -> Result<(), Problem> {
        let raw = match &self.body {
            Body::Plain(raw) => raw,
            Body::Gzip(archive) => archive.get_ref().get_ref(),
        };
        let (Some(before), Origin::File(file)) = (&self.before, &raw.from) else {
            return Ok(());
        };
        let same =
            |after: Metadata| after.len() == before.len() && after.modified().ok() == before.modified().ok();
        if file.metadata().is_ok_and(same) {
            return Ok(());
        }
        Err(self
            .problem("the file changed while being read")
            .mend("wait until it is written, then try again"))
    }

    fn body_read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let archive = match &mut self.body {
            Body::Plain(raw) => return raw.read(into),
            Body::Gzip(archive) => archive,
        };
        let read = match archive.read(into) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(error); // a file that was cut off: who reads it says what is missing
            }
            Err(error) => {
                let problem =
                    Problem::in_file(self.name.clone(), format!("a damaged gzip archive ({error})"));
                self.failed = Some(problem.mend("copy or download it again; `gzip -t` checks it"));
                return Err(error);
            }
        };
        self.unpacked = self.unpacked.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        let packed = archive.get_ref().get_ref().read;
        if self.unpacked > RATIO_FREE && self.unpacked / MOST_RATIO > packed {
            let cause = format!("a gzip archive that expands more than {MOST_RATIO}×");
            let problem = Problem::in_file(self.name.clone(), cause);
            self.failed = Some(problem.mend("unpack it first with `gunzip`, if it is what you think it is"));
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(read)
    }
}

const EMPTY: &str = "it was not written to its end: write it again, a snapshot with \
     `torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")`";

impl Read for Binary {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = self.head.get(self.given..).unwrap_or_default();
        if rest.is_empty() {
            return self.body_read(into);
        }
        let read = rest.len().min(into.len());
        if let (Some(into), Some(rest)) = (into.get_mut(..read), rest.get(..read)) {
            into.copy_from_slice(rest);
        }
        self.given += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut archive = GzEncoder::new(Vec::new(), Compression::fast());
        archive.write_all(bytes).unwrap();
        archive.finish().unwrap()
    }

    fn whole(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        Binary::from_bytes("x", bytes).unwrap().read_to_end(&mut all).map(|_| all)
    }

    #[test]
    fn what_is_gzipped_reads_as_what_is_in_it() {
        let text: Vec<u8> =
            (0..300_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        assert_eq!(whole(text.clone()).unwrap(), text);
        assert_eq!(whole(gzip(&text)).unwrap(), text);
        let two = [gzip(b"one, "), gzip(b"two")].concat();
        assert_eq!(whole(two).unwrap(), b"one, two", "an archive of several members");
        assert_eq!(Binary::from_bytes("x", gzip(b"{}")).unwrap().head(), b"{}");
        let mut streamed = Binary::from_reader("x", io::Cursor::new(gzip(&text))).unwrap();
        let mut all = Vec::new();
        streamed.read_to_end(&mut all).unwrap();
        assert_eq!((all, streamed.size()), (text, None));
    }

    #[test]
    fn an_archive_that_expands_without_end_is_refused_while_it_is_read() {
        let mut bomb = Binary::from_bytes("bomb.gz", gzip(&vec![0; 64 << 20])).unwrap();
        let error = io::copy(&mut bomb, &mut io::sink()).unwrap_err();
        let said = bomb.explain(&error).to_string();
        assert!(said.starts_with("bomb.gz: a gzip archive that expands more than 200×\n  help: "), "{said}");
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("growing.pickle");
        std::fs::write(&path, "some").unwrap();
        let file = Binary::open(&Input::of(path.as_path()), MEASURED_LIMIT).unwrap();
        assert!(file.check_unchanged().is_ok());
        std::fs::write(&path, "some more").unwrap();
        let said = file.check_unchanged().unwrap_err().to_string();
        assert!(said.contains("changed while being read"), "{said}");
    }

    #[test]
    fn an_archive_that_was_cut_off_gives_what_there_is() {
        let text: Vec<u8> =
            (0..200_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let packed = gzip(&text);
        let mut cut = Binary::from_bytes("x", packed[..packed.len() / 2].to_vec()).unwrap();
        let mut all = Vec::new();
        let error = cut.read_to_end(&mut all).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(all.len() > 100_000 && text.starts_with(&all));
    }
}

//! The bytes of the file, a piece at a time.

use super::MOST_LINE;
use super::error::Wrong;
use std::io::{self, Read};

/// How much is read at once.
const PIECE: usize = 1 << 18;

/// The file as the machine eats it.
pub(crate) struct Feed<'a> {
    from: &'a mut dyn Read,
    buffer: Vec<u8>,
    at: usize,
    /// How many bytes were eaten before the buffer.
    before: u64,
    ended: bool,
    /// An archive ended before what is in it did.
    cut_off: bool,
    error: Option<io::Error>,
    /// Told how many bytes were eaten, now and then.
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> Feed<'a> {
    pub(crate) fn new(from: &'a mut dyn Read, progress: &'a mut dyn FnMut(u64)) -> Feed<'a> {
        let buffer = Vec::with_capacity(2 * PIECE);
        Feed { from, buffer, at: 0, before: 0, ended: false, cut_off: false, error: None, progress }
    }

    /// How many bytes were eaten.
    pub(crate) fn offset(&self) -> u64 {
        self.before + self.at as u64
    }

    /// What reading ran into, if it was not the end of the file.
    pub(crate) fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Whether the file is an archive that was cut off.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    /// Gives the last byte back.
    pub(crate) fn uneat(&mut self) {
        self.at = self.at.saturating_sub(1);
    }

    /// What lies ready to be eaten.
    #[inline]
    pub(crate) fn ready(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or_default()
    }

    /// Eats bytes that lie ready.
    #[inline]
    pub(crate) fn eat(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Has at least so many bytes ready, unless the file ends before.
    #[inline]
    pub(crate) fn want(&mut self, bytes: usize) -> bool {
        self.ready().len() >= bytes || self.fill(bytes)
    }

    #[cold]
    fn fill(&mut self, bytes: usize) -> bool {
        while self.ready().len() < bytes && !self.ended {
            self.before += self.at as u64;
            self.buffer.drain(..self.at);
            self.at = 0;
            // only what is there takes memory, whatever length was announced
            let most = PIECE as u64;
            match (&mut *self.from).take(most).read_to_end(&mut self.buffer) {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(error) => {
                    self.ended = true;
                    self.cut_off = error.kind() == io::ErrorKind::UnexpectedEof;
                    self.error = (error.kind() != io::ErrorKind::UnexpectedEof).then_some(error);
                }
            }
            (self.progress)(self.before);
        }
        self.ready().len() >= bytes
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        if !self.want(1) {
            return None;
        }
        let byte = self.ready().first().copied();
        self.at += 1;
        byte
    }

    /// Eats a number of that many bytes.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        if !self.want(N) {
            return Err(cut("a number"));
        }
        let array = self.ready().first_chunk::<N>().copied().unwrap_or([0; N]);
        self.at += N;
        Ok(array)
    }

    /// Makes that many bytes ready, of which the caller eats them.
    #[inline]
    pub(crate) fn string(&mut self, length: u64, what: &'static str) -> Result<usize, Wrong> {
        let length = usize::try_from(length).map_err(|_| cut(what))?;
        if !self.want(length) {
            return Err(cut(what));
        }
        Ok(length)
    }

    /// Passes that many bytes.
    pub(crate) fn pass(&mut self, mut length: u64, what: &'static str) -> Result<(), Wrong> {
        while length > 0 {
            if !self.want(1) {
                return Err(cut(what));
            }
            let now = self.ready().len().min(usize::try_from(length).unwrap_or(usize::MAX));
            self.at += now;
            length -= now as u64;
        }
        Ok(())
    }

    /// Passes a line, if it is none too long.
    pub(crate) fn line(&mut self) -> Result<(), Wrong> {
        for _ in 0..MOST_LINE {
            match self.byte() {
                Some(b'\n') => return Ok(()),
                Some(_) => {}
                None => return Err(cut("a line")),
            }
        }
        Err(Wrong::new("a line longer than 4_096"))
    }

    /// How many bytes are left, all of which are passed.
    pub(crate) fn rest(&mut self) -> u64 {
        let mut rest = 0;
        while self.want(1) {
            let now = self.ready().len();
            self.at += now;
            rest += now as u64;
        }
        rest
    }
}

/// The file ends where more was announced.
fn cut(what: &str) -> Wrong {
    Wrong::damaged(format!("truncated in the middle of {what}"))
}

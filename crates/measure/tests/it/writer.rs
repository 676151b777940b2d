//! A small pickle writer, in the order and with the sharing of Python's: protocol 4 with frames and MEMOIZE, protocol 2
//! with BINPUT. What a test wants to be odd, it writes as raw bytes.

use std::collections::BTreeMap;

/// A value to be written.
#[derive(Clone, Debug)]
pub(crate) enum Py {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    List(Vec<Py>),
    Tuple(Vec<Py>),
    Dict(Vec<(Py, Py)>),
    /// The same object each time it is met, by its number.
    Shared(u32, Box<Py>),
    /// Opcodes as they are.
    Raw(Vec<u8>),
}

impl From<i64> for Py {
    fn from(number: i64) -> Py {
        Py::Int(number.into())
    }
}

impl From<&str> for Py {
    fn from(text: &str) -> Py {
        Py::Str(text.to_owned())
    }
}

pub(crate) fn dict<const N: usize>(pairs: [(&str, Py); N]) -> Py {
    Py::Dict(pairs.into_iter().map(|(key, value)| (Py::from(key), value)).collect())
}

/// The pickle of a value.
pub(crate) fn pickle(value: &Py, protocol: u8) -> Vec<u8> {
    let mut writer = Writer::new(protocol);
    writer.value(value);
    writer.out.push(b'.');
    let mut file = vec![0x80, protocol];
    if protocol >= 4 {
        file.push(0x95);
        file.extend((writer.out.len() as u64).to_le_bytes());
    }
    file.extend(writer.out);
    file
}

/// What is written, opcode by opcode.
pub(crate) struct Writer {
    protocol: u8,
    pub(crate) out: Vec<u8>,
    texts: BTreeMap<String, u32>,
    shared: BTreeMap<u32, u32>,
    next: u32,
}

impl Writer {
    pub(crate) fn new(protocol: u8) -> Writer {
        Writer { protocol, out: Vec::new(), texts: BTreeMap::new(), shared: BTreeMap::new(), next: 0 }
    }

    pub(crate) fn memoize(&mut self) -> u32 {
        let id = self.next;
        self.next += 1;
        match (self.protocol >= 4, u8::try_from(id)) {
            (true, _) => self.out.push(0x94),
            (false, Ok(id)) => self.out.extend([b'q', id]),
            (false, Err(_)) => {
                self.out.push(b'r');
                self.out.extend(id.to_le_bytes());
            }
        }
        id
    }

    pub(crate) fn get(&mut self, id: u32) {
        match u8::try_from(id) {
            Ok(id) => self.out.extend([b'h', id]),
            Err(_) => {
                self.out.push(b'j');
                self.out.extend(id.to_le_bytes());
            }
        }
    }

    fn value(&mut self, value: &Py) {
        match value {
            Py::None => self.out.push(b'N'),
            Py::Bool(true) => self.out.push(0x88),
            Py::Bool(false) => self.out.push(0x89),
            Py::Int(number) => self.int(*number),
            Py::Float(number) => {
                self.out.push(b'G');
                self.out.extend(number.to_be_bytes());
            }
            Py::Str(text) => self.text(text),
            Py::List(items) => {
                self.out.push(b']');
                self.memoize();
                self.items(items);
            }
            Py::Tuple(items) => {
                if items.len() > 3 {
                    self.out.push(b'(');
                }
                items.iter().for_each(|item| self.value(item));
                self.out.push(match items.len() {
                    0 => b')',
                    1 => 0x85,
                    2 => 0x86,
                    3 => 0x87,
                    _ => b't',
                });
                if !items.is_empty() {
                    self.memoize();
                }
            }
            Py::Dict(pairs) => {
                self.out.push(b'}');
                self.memoize();
                self.pairs(pairs);
            }
            Py::Shared(number, value) => match self.shared.get(number).copied() {
                Some(id) => self.get(id),
                None => {
                    // a container's number is given when it begins, as Python does
                    self.shared.insert(*number, self.next);
                    self.value(value);
                }
            },
            Py::Raw(bytes) => self.out.extend(bytes),
        }
    }

    fn items(&mut self, items: &[Py]) {
        for batch in items.chunks(1000) {
            match batch {
                [one] => {
                    self.value(one);
                    self.out.push(b'a');
                }
                batch => {
                    self.out.push(b'(');
                    batch.iter().for_each(|item| self.value(item));
                    self.out.push(b'e');
                }
            }
        }
    }

    fn pairs(&mut self, pairs: &[(Py, Py)]) {
        for batch in pairs.chunks(1000) {
            let mark = batch.len() > 1;
            if mark {
                self.out.push(b'(');
            }
            for (key, value) in batch {
                self.value(key);
                self.value(value);
            }
            self.out.push(if mark { b'u' } else { b's' });
        }
    }

    pub(crate) fn text(&mut self, text: &str) {
        if let Some(id) = self.texts.get(text).copied() {
            return self.get(id);
        }
        match u8::try_from(text.len()) {
            Ok(length) if self.protocol >= 4 => self.out.extend([0x8c, length]),
            _ => {
                self.out.push(b'X');
                self.out.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
            }
        }
        self.out.extend(text.as_bytes());
        let id = self.memoize();
        self.texts.insert(text.to_owned(), id);
    }

    pub(crate) fn int(&mut self, number: i128) {
        if let Ok(byte) = u8::try_from(number) {
            self.out.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(number) {
            self.out.push(b'M');
            self.out.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(number) {
            self.out.push(b'J');
            self.out.extend(int.to_le_bytes());
        } else {
            let bytes = number.to_le_bytes();
            let filler = if number < 0 { 0xff } else { 0 };
            let mut length = 16;
            while length > 1 && bytes[length - 1] == filler && (bytes[length - 2] >= 0x80) == (number < 0) {
                length -= 1;
            }
            self.out.extend([0x8a, u8::try_from(length).unwrap()]);
            self.out.extend(&bytes[..length]);
        }
    }
}

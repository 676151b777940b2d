//! The opcodes of pickles, as `pickletools` names them: those that data is made of, and those that are refused.

pub(super) const PROTO: u8 = 0x80;
pub(super) const FRAME: u8 = 0x95;
pub(super) const STOP: u8 = b'.';
pub(super) const MARK: u8 = b'(';
pub(super) const EMPTY_DICT: u8 = b'}';
pub(super) const EMPTY_LIST: u8 = b']';
pub(super) const EMPTY_TUPLE: u8 = b')';
pub(super) const APPEND: u8 = b'a';
pub(super) const APPENDS: u8 = b'e';
pub(super) const SETITEM: u8 = b's';
pub(super) const SETITEMS: u8 = b'u';
pub(super) const TUPLE: u8 = b't';
pub(super) const TUPLE1: u8 = 0x85;
pub(super) const TUPLE2: u8 = 0x86;
pub(super) const TUPLE3: u8 = 0x87;
pub(super) const NONE: u8 = b'N';
pub(super) const NEWTRUE: u8 = 0x88;
pub(super) const NEWFALSE: u8 = 0x89;
pub(super) const BININT: u8 = b'J';
pub(super) const BININT1: u8 = b'K';
pub(super) const BININT2: u8 = b'M';
pub(super) const LONG1: u8 = 0x8a;
pub(super) const LONG4: u8 = 0x8b;
pub(super) const BINFLOAT: u8 = b'G';
pub(super) const SHORT_BINUNICODE: u8 = 0x8c;
pub(super) const BINUNICODE: u8 = b'X';
pub(super) const BINUNICODE8: u8 = 0x8d;
pub(super) const SHORT_BINBYTES: u8 = b'C';
pub(super) const BINBYTES: u8 = b'B';
pub(super) const BINBYTES8: u8 = 0x8e;
pub(super) const BYTEARRAY8: u8 = 0x96;
pub(super) const BINGET: u8 = b'h';
pub(super) const LONG_BINGET: u8 = b'j';
pub(super) const BINPUT: u8 = b'q';
pub(super) const LONG_BINPUT: u8 = b'r';
pub(super) const MEMOIZE: u8 = 0x94;
/// Text opcodes with one line; the longest hostile files are made of them.
pub(super) const INT: u8 = b'I';
pub(super) const LONG: u8 = b'L';
pub(super) const FLOAT: u8 = b'F';
/// Names a callable in two lines.
pub(super) const GLOBAL: u8 = b'c';
/// Names a callable by two strings on the stack.
pub(super) const STACK_GLOBAL: u8 = 0x93;

/// The name of an opcode that no data needs, and why it is refused.
pub(super) fn refused(opcode: u8) -> Option<(&'static str, Why)> {
    Some(match opcode {
        b'i' => ("INST", Why::Callable),
        b'o' => ("OBJ", Why::Callable),
        0x81 => ("NEWOBJ", Why::Callable),
        0x92 => ("NEWOBJ_EX", Why::Callable),
        b'R' => ("REDUCE", Why::Callable),
        b'b' => ("BUILD", Why::Callable),
        b'P' => ("PERSID", Why::Callable),
        b'Q' => ("BINPERSID", Why::Callable),
        0x82 => ("EXT1", Why::Callable),
        0x83 => ("EXT2", Why::Callable),
        0x84 => ("EXT4", Why::Callable),
        0x97 => ("NEXT_BUFFER", Why::OutOfBand),
        0x98 => ("READONLY_BUFFER", Why::OutOfBand),
        b'0' => ("POP", Why::Unneeded),
        b'1' => ("POP_MARK", Why::Unneeded),
        b'2' => ("DUP", Why::Unneeded),
        b'd' => ("DICT", Why::Unneeded),
        b'l' => ("LIST", Why::Unneeded),
        b'S' => ("STRING", Why::Unneeded),
        b'V' => ("UNICODE", Why::Unneeded),
        b'T' => ("BINSTRING", Why::Unneeded),
        b'U' => ("SHORT_BINSTRING", Why::Unneeded),
        b'g' => ("GET", Why::Unneeded),
        b'p' => ("PUT", Why::Unneeded),
        0x8f => ("EMPTY_SET", Why::Unneeded),
        0x90 => ("ADDITEMS", Why::Unneeded),
        0x91 => ("FROZENSET", Why::Unneeded),
        _ => return None,
    })
}

/// Why an opcode is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It makes an object of a class, or calls something.
    Callable,
    /// Its data is not in the file.
    OutOfBand,
    /// No snapshot has it.
    Unneeded,
}

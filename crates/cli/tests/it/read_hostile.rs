//! Snapshots that are none, or odd: each ends with its exit code and the words that say what it is. Codes: 2 an error, 0 a
//! note, and where `salvage` is named an error by default and 3 with `--salvage`.

use crate::own::*;
use crate::support::Bench;
use crate::writer::{Py, dict, pickle};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::time::{Duration, Instant};

enum Ends {
    /// Code 2, with these words on standard error.
    Error,
    /// Code 0, with these words in the JSON answer.
    Note,
    /// As an error; with `--salvage` code 3.
    Salvage,
}
use Ends::{Error, Note, Salvage};

fn case(name: &str, bytes: impl AsRef<[u8]>, ends: &Ends, says: &[&str]) {
    let bench = Bench::new().file("x.pickle", bytes);
    let began = Instant::now();
    let ran = bench.run("read x.pickle --format json");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{name}: {took:?}");
    let (code, said) = match ends {
        Note => (0, &ran.out),
        Error | Salvage => (2, &ran.err),
    };
    assert_eq!(ran.code, Some(code), "{name}: {}{}", ran.err, ran.out);
    for words in says {
        assert!(said.contains(words), "{name} says not `{words}`: {said}");
    }
    match ends {
        Note => assert_eq!(ran.err, "", "{name}"),
        Error | Salvage => {
            assert!(
                ran.err.starts_with("error: x.pickle") && ran.err.contains("\n  help: "),
                "{name}: {}",
                ran.err
            );
            assert_eq!(ran.out, "", "{name}");
        }
    }
    let salvaged = bench.run("read x.pickle --format json --salvage").code;
    let wanted = match ends {
        Error => 2,
        Note => 0,
        Salvage => 3,
    };
    assert_eq!(salvaged, Some(wanted), "{name} with --salvage");
}

/// The header of protocol 4, and these opcodes.
fn raw(opcodes: &[u8]) -> Vec<u8> {
    [b"\x80\x04", opcodes].concat()
}

/// A snapshot whose one event has this value for this key.
fn with_event(key: &str, value: Py) -> Vec<u8> {
    let mut one = event("alloc", BASE, 512, 1, Py::None);
    if let Py::Dict(pairs) = &mut one {
        pairs.retain(|(k, _)| !matches!(k, Py::Str(k) if k == key));
        pairs.push((key.into(), value));
    }
    pickle(&traced(vec![one]), 4)
}

fn traced(events: Vec<Py>) -> Py {
    dict([("segments", Py::List(vec![])), ("device_traces", Py::List(vec![Py::List(events)]))])
}

fn with_blocks(blocks: Vec<Py>) -> Vec<u8> {
    pickle(&dict([("segments", Py::List(vec![segment(0, BASE, SMALL, blocks)]))]), 4)
}

#[test]
fn a_containers() {
    let whole = pickle(&step(), 4);
    case("1 empty", b"", &Error, &["an empty file", "_dump_snapshot"]);
    case("2 one byte", b"\x80", &Error, &["truncated in the header (1 byte)"]);
    let proj = whole.windows(5).rposition(|w| w == b"/proj").unwrap();
    let says = ["truncated in the middle of a string", "byte ", "0 events before it are sound", "--salvage"];
    case("3 in a string", &whole[..proj + 3], &Salvage, &says);
    case(
        "4 no STOP",
        &whole[..whole.len() - 1],
        &Salvage,
        &["ends without STOP", "4 events before it are sound"],
    );
    let text = ["protocol 0 (text); PyTorch writes 2–5", "re-dump with `protocol=4`"];
    case("5 protocol 0", b"(dp0\nS'segments'\np1\n(lp2\ns.", &Error, &text);
    case("5 protocol 1", b"}q\x00.", &Error, &["protocol 1; PyTorch writes 2–5"]);
    case("6 protocol 6", b"\x80\x06}.", &Error, &["protocol 6 is newer than this version knows (2–5)"]);
    case("6 protocol 255", b"\x80\xff}.", &Error, &["protocol 255 is newer than this version knows (2–5)"]);
    case("7 two PROTO", raw(b"\x80\x04}."), &Error, &["a second PROTO", "byte "]);
    let after = [whole.as_slice(), b"\x80\x04cos\nsystem\n)R."].concat();
    case("8 after STOP", after, &Note, &["16 bytes after the end were ignored"]);
}

#[test]
fn a_nothing_is_called() {
    let load = "do not load this file with Python's pickle";
    let says = ["names a callable `os.system`", "a snapshot is data only", load];
    case("9 GLOBAL", raw(b"cos\nsystem\n\x8c\x04true\x85R."), &Error, &says);
    case("10 STACK_GLOBAL", raw(b"\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93."), &Error, &says);
    for (name, opcodes) in [
        ("INST", b"(ios\nsystem\n.".as_slice()),
        ("OBJ", b"(}o."),
        ("NEWOBJ", b"})\x81."),
        ("NEWOBJ_EX", b"})}\x92."),
        ("BUILD", b"}}b."),
        ("REDUCE", b"})R."),
        ("PERSID", b"Pid\n."),
        ("BINPERSID", b"NQ."),
        ("EXT1", b"\x82\x01."),
        ("EXT2", b"\x83\x01\x00."),
        ("EXT4", b"\x84\x01\x00\x00\x00."),
    ] {
        case(name, raw(opcodes), &Error, &[&format!("the opcode {name} "), ": byte ", load]);
    }
    case("13 NEXT_BUFFER", raw(b"\x97."), &Error, &["NEXT_BUFFER", "out-of-band buffers"]);
    case("13 READONLY_BUFFER", raw(b"N\x98."), &Error, &["READONLY_BUFFER", "out-of-band buffers"]);
    let mut zip = b"PK\x03\x04".to_vec();
    zip.resize(26, 0);
    zip.extend([16, 0, 0, 0]);
    zip.extend(b"archive/data.pklrest");
    case(
        "14 a checkpoint",
        zip,
        &Error,
        &["this is a PyTorch checkpoint, not a memory snapshot", "_dump_snapshot"],
    );
    let numpy = Py::Raw(b"cnumpy.core.multiarray\nscalar\n".to_vec());
    let says = [
        "names a callable `numpy.core.multiarray.scalar`",
        "device_traces[0][0].size",
        "convert numpy's numbers to int",
    ];
    case("15 numpy", with_event("size", numpy), &Error, &says);
}

#[test]
fn a_bombs() {
    let mut bomb = b"]\x94(K\x01K\x01K\x01e".to_vec();
    for level in 0..9u8 {
        bomb.extend(b"]\x94(");
        bomb.extend([b'h', level].repeat(10));
        bomb.push(b'e');
    }
    bomb.push(b'.');
    case("16 memo bomb", raw(&bomb), &Error, &["STOP where 10 values are left, not one"]);
    case("17 DUP", raw(&[b"]".as_slice(), &b"2a".repeat(28), b"."].concat()), &Error, &["the opcode DUP"]);
    case("18 list in itself", raw(b"]\x94h\x00a."), &Error, &["cyclic"]);
    case("18 dict in itself", raw(b"}\x94(\x8c\x01ah\x00u."), &Error, &["cyclic"]);
    case("18 list in the dict in it", raw(b"]\x94(}\x94(\x8c\x01ah\x00ue."), &Error, &["cyclic"]);
    case(
        "19 lists",
        raw(&[b"]".repeat(1_000_000), b"a".repeat(999_999), b".".to_vec()].concat()),
        &Error,
        &["nested deeper than 64"],
    );
    case(
        "20 tuples",
        raw(&[b"K\x01".to_vec(), b"\x85".repeat(1_000_000), b".".to_vec()].concat()),
        &Error,
        &["nested deeper than 64"],
    );
    case("21 marks", raw(&b"(".repeat(1_000_000)), &Error, &["mark without end"]);
    case("21 one mark", raw(b"}(."), &Error, &["mark without end"]);
    // cut off before anything was begun: there is nothing to salvage
    let long = [b"\x8b\xff\xff\xff\x7f".as_slice(), &[7; 16]].concat();
    case("22 LONG4 of 2 GiB", raw(&long), &Error, &["truncated in the middle of an integer"]);
    case("23 LONG4 of negative length", raw(b"\x8b\xff\xff\xff\xff."), &Error, &["negative length"]);
    let wide = Py::Raw([b"\x8a\xff".as_slice(), &[1; 255]].concat());
    let says = ["integer wider than 64 bits", "device_traces[0][0].size"];
    case("24 an integer of 2040 bits", with_event("size", wide), &Error, &says);
    for opcode in [b'L', b'I'] {
        let line = [&[opcode][..], &b"7".repeat(2_000_000), b"L\n."].concat();
        case("25 a long line", raw(&line), &Error, &["line longer than 4_096"]);
    }
    case("25 a short line", raw(b"L7L\n."), &Error, &["a number in text"]);
    for length in [(1u64 << 63) - 1, u64::MAX] {
        for opcode in [0x8e, 0x8d] {
            let file = [&[opcode][..], &length.to_le_bytes(), b"abc"].concat();
            case("26 a string of 2^63 bytes", raw(&file), &Error, &["truncated in the middle of a string"]);
        }
    }
}

#[test]
fn a_odd_opcodes() {
    let frame =
        |length: u64| [b"\x80\x04\x95".as_slice(), &length.to_le_bytes(), &pickle(&step(), 2)[2..]].concat();
    case(
        "27 FRAME beyond the file",
        frame(1 << 40),
        &Error,
        &["a FRAME that reaches beyond the end of the file"],
    );
    case("27 FRAME too small", frame(3), &Note, &["\"complete\": true"]);
    case("28 GET of nothing", raw(b"h\x07."), &Error, &["number 7 of the memo, where nothing is"]);
    let sparse = [b"]r\xff\xff\xff\xff0".as_slice()].concat();
    case("28 a far PUT", raw(&sparse[..6]), &Salvage, &["ends without STOP"]);
    case(
        "29 PUT twice",
        raw(b"\x8c\x01aq\x00\x8c\x01bq\x00\x86h\x00\x86."),
        &Error,
        &["the file holds a list or a tuple"],
    );
    case(
        "30 odd SETITEMS",
        raw(b"}(\x8c\x01au."),
        &Error,
        &["SETITEMS with a key that has no value", "byte "],
    );
    case("30 APPENDS onto a dict", raw(b"}(Ne."), &Error, &["APPENDS onto a dict, not onto a list"]);
    case("30 SETITEM on a list", raw(b"]\x8c\x01aNs."), &Error, &["SETITEM on a list, not on a dict"]);
    case("31 two values", raw(b"]]."), &Error, &["STOP where 2 values are left, not one"]);
    case("36 no opcode", raw(b"}(\xf7u."), &Error, &["byte 4: 0xf7 is no opcode"]);
}

#[test]
fn a_words() {
    let file = |name: &[u8]| {
        let raw = [&[b'X'][..], &u32::try_from(name.len()).unwrap().to_le_bytes(), name].concat();
        let frame = dict([("name", "f".into()), ("filename", Py::Raw(raw)), ("line", 1.into())]);
        with_event("frames", Py::List(vec![frame]))
    };
    case("32 no UTF-8", file(b"caf\xe9.py"), &Note, &[r"caf\\xe9.py:1:f"]);
    case("32 lone surrogates", file(b"\xed\xa0\x80.py"), &Note, &[r"\\xed\\xa0\\x80.py:1:f"]);
    let long = [&b"x".repeat(5 << 20)[..], b".py"].concat();
    case("33 a long name", file(&long), &Note, &[".py:1:f"]);
    let bench = Bench::new().file("x.pickle", file("a\0\n\u{1b}[31m\u{202e}</script>.py".as_bytes()));
    let said = bench.answer("read x.pickle");
    assert!(!said.contains(['\u{1b}', '\0', '\u{202e}']) && said.contains(r"\u{1b}[31m"), "{said:?}");
    let bench = Bench::new().file("x.pickle", file(&long));
    assert!(bench.answer("read x.pickle").len() < 10_000, "a long name is cut where it is shown");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut archive = GzEncoder::new(Vec::new(), Compression::fast());
    archive.write_all(bytes).unwrap();
    archive.finish().unwrap()
}

#[test]
fn a_and_g_archives() {
    let whole = pickle(&step(), 4);
    case("35 gzip", gzip(&whole), &Note, &["\"requested_bytes\": 6000"]);
    case("35 zstd", b"\x28\xb5\x2f\xfd\x00", &Error, &["a zstd archive", "unpack it first"]);
    case(
        "107 several members",
        [gzip(&whole[..99]), gzip(&whole[99..])].concat(),
        &Note,
        &["\"requested_bytes\": 6000"],
    );
    let packed = gzip(&whole);
    case("107 cut off", &packed[..packed.len() - 30], &Salvage, &["the gzip archive is truncated"]);
    let zeros = [b"\x80\x04B\xff\xff\xff\x7f".as_slice(), &vec![0; 64 << 20]].concat();
    case("107 a bomb", gzip(&zeros), &Error, &["expands more than 200×"]);
    case(
        "108 zip",
        b"PK\x03\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\0\0a.pickle",
        &Error,
        &["a zip archive (it holds `a.pickle`)", "unpack it first"],
    );
}

#[test]
fn b_shapes() {
    case("37 a list", pickle(&Py::List(segments()), 4), &Note, &["legacy shape: no trace"]);
    let only = |key: &str| {
        let Py::Dict(pairs) = step() else { unreachable!() };
        let pairs = pairs.into_iter().filter(|(k, _)| matches!(k, Py::Str(k) if k == key));
        pickle(&Py::Dict(pairs.collect()), 4)
    };
    case("38 no traces", only("segments"), &Note, &["no trace was recorded", "_record_memory_history"]);
    case("38 no segments", only("device_traces"), &Note, &["no `segments`"]);
    case(
        "38 neither",
        pickle(&dict([("model", "x".into()), ("epoch", 3.into())]), 4),
        &Error,
        &["neither `segments` nor `device_traces`", "`model`, `epoch`"],
    );
    case("38 a number", raw(b"K\x07."), &Error, &["the file holds an integer, not a snapshot"]);
    let empty = dict([
        ("segments", Py::List(segments())),
        ("device_traces", Py::List(vec![Py::List(vec![]), Py::List(vec![])])),
    ]);
    case(
        "39 no trace",
        pickle(&empty, 4),
        &Note,
        &["only the final state is known", "_record_memory_history"],
    );
    case("40 an empty device beside", pickle(&empty, 4), &Note, &["\"largest_device\": 0"]);
    case(
        "41 an unknown action",
        with_event("action", "workspace_snapshot".into()),
        &Note,
        &["the unknown action `workspace_snapshot` are passed over at event 0"],
    );
    let pair = |second: &str| {
        pickle(
            &traced(vec![event("alloc", BASE, 512, 1, Py::None), event(second, BASE, 512, 2, Py::None)]),
            4,
        )
    };
    case("42 legacy free", pair("free"), &Note, &["\"complete\": true"]);
    case("42 pending at the end", pair("free_requested"), &Note, &["\"requested_bytes\": 512"]);
    let freed = traced(vec![
        event("free_requested", BASE, 700, 1, Py::None),
        event("free_completed", BASE, 700, 1, Py::None),
    ]);
    case(
        "43 freed from before",
        pickle(&freed, 4),
        &Note,
        &[
            "history starts at event 0",
            "700 B in 1 block was already live",
            "\"opening_requested_bytes\": 700",
        ],
    );
    case(
        "44 survived from before",
        pickle(&step(), 4),
        &Note,
        &["history starts at event 0", "\"opening_requested_bytes\": 1000"],
    );
}

#[test]
fn b_events() {
    let mut sound: Vec<Py> = Vec::new();
    for at in 0..100 {
        sound.extend(
            ["alloc", "free_requested", "free_completed"].map(|what| event(what, BASE, 512, at, Py::None)),
        );
    }
    let then = |more: Vec<Py>| pickle(&traced([sound.clone(), more].concat()), 4);
    let alloc = |at: i64| event("alloc", at, 512, 999, Py::None);
    let twice = |what: &str| {
        vec![alloc(BASE), event(what, BASE, 512, 999, Py::None), event(what, BASE, 512, 999, Py::None)]
    };
    case("45 freed twice", then(twice("free_requested")), &Note, &["a block is freed twice", "at event 302"]);
    case(
        "45 over a live block",
        then(vec![alloc(BASE), alloc(BASE)]),
        &Note,
        &["handed out over one that is in use", "at event 301"],
    );
    case(
        "45 mostly nonsense",
        pickle(&traced(vec![alloc(BASE), alloc(BASE)]), 4),
        &Salvage,
        &["1 of 2 events make no sense"],
    );
    case(
        "47 a negative size",
        with_event("size", Py::Int(-512)),
        &Salvage,
        &["(device_traces[0][0].size): negative size -512", "0 events before it are sound"],
    );
    case("47 a size of 0", with_event("size", 0.into()), &Note, &["an allocation of no bytes at event 0"]);
    let large = dict([
        ("segments", Py::List(segments())),
        ("device_traces", Py::List(vec![Py::List(vec![event("alloc", BASE + 1024, 9 << 20, 1, Py::None)])])),
    ]);
    case("47 larger than its segment", pickle(&large, 4), &Note, &["larger than the segment it lies in"]);
    let half = Py::Int(1 << 63);
    let huge = |addr: i64| {
        dict([
            ("action", "alloc".into()),
            ("addr", addr.into()),
            ("size", half.clone()),
            ("stream", 0.into()),
        ])
    };
    case(
        "48 past 64 bits",
        pickle(&traced(vec![huge(0), huge(1 << 40)]), 4),
        &Error,
        &["sum exceeds 64 bits at event 1"],
    );
    case("49 a whole float", with_event("size", Py::Float(512.0)), &Note, &["`size` is written as a float"]);
    for number in [512.5, f64::NAN, f64::INFINITY] {
        case(
            "49 no whole float",
            with_event("size", Py::Float(number)),
            &Salvage,
            &["not a whole number of bytes"],
        );
    }
    for (value, says) in [
        ("512".into(), "`size` is a string"),
        (Py::Bool(true), "`size` is a bool"),
        (Py::None, "`size` is None"),
    ] {
        case("50 another type", with_event("size", value), &Salvage, &[says, "not an integer"]);
    }
    let mut pairs = vec![("action".into(), "alloc".into()), ("size".into(), 512.into())];
    case("52 no addr", pickle(&traced(vec![Py::Dict(pairs.clone())]), 4), &Note, &["an event has no `addr`"]);
    case(
        "52 a high addr",
        with_event("addr", Py::Int((1 << 60) + 512)),
        &Note,
        &["\"requested_bytes\": 512"],
    );
    pairs[0].1 = "oom".into();
    case(
        "53 oom without device_free",
        pickle(&traced(vec![Py::Dict(pairs)]), 4),
        &Note,
        &["\"device_free_bytes\": null"],
    );
    let back = vec![event("alloc", BASE, 512, 9, Py::None), event("alloc", BASE + 512, 512, 3, Py::None)];
    case("54 the clock", pickle(&traced(back), 4), &Note, &["clock runs backwards at event 1"]);
    case("54 before 1970", with_event("time_us", Py::Int(-5)), &Note, &["before 1970"]);
    case(
        "54 in 2500",
        with_event("time_us", Py::Int(16_725_225_600_000_000)),
        &Note,
        &["\"requested_bytes\": 512"],
    );
    for stream in [Py::Int(-1), Py::Int((1 << 64) - 1)] {
        case("59 a stream", with_event("stream", stream), &Note, &["\"requested_bytes\": 512"]);
    }
    case("59 no stream", with_event("stream", Py::None), &Note, &["streams that are no number"]);
}

#[test]
fn b_stacks() {
    case("55 None", with_event("frames", Py::None), &Note, &["<no stack>"]);
    case("55 empty", with_event("frames", Py::List(vec![])), &Note, &["<no stack>"]);
    let deep = (0..1000).map(|line| frame("/proj/a.py", line, "f")).collect();
    case("55 deep", with_event("frames", Py::List(deep)), &Note, &["\"depth\": 1000"]);
    case("55 no frames", with_event("frames", "a stack".into()), &Note, &["no list of frames"]);
    let odd = |line: Py| with_event("frames", Py::List(vec![dict([("name", "f".into()), ("line", line)])]));
    case("56 no file", odd(3.into()), &Note, &["?:3:f", "shown with `?`"]);
    case("56 a negative line", odd(Py::Int(-3)), &Note, &["?:?:f"]);
    case("56 a line in words", odd("three".into()), &Note, &["?:?:f"]);
}

#[test]
fn b_segments() {
    let live =
        |at: i64, size: i64, requested: i64| block(BASE + at, size, requested, "active_allocated", Py::None);
    let two = vec![segment(0, BASE, SMALL, vec![]), segment(0, BASE + 512, SMALL, vec![])];
    case(
        "46 segments overlap",
        pickle(&dict([("segments", Py::List(two))]), 4),
        &Note,
        &["1 segments overlap"],
    );
    case(
        "46 a stray block",
        with_blocks(vec![live(SMALL, 512, 1)]),
        &Note,
        &["1 blocks lie outside their segment"],
    );
    case("46 a gap", with_blocks(vec![live(0, 512, 1)]), &Note, &["the blocks do not fill their segments"]);
    case(
        "51 asked for more",
        with_blocks(vec![live(0, SMALL, SMALL + 1)]),
        &Note,
        &["smaller than what was asked for"],
    );
    let bare = dict([("size", SMALL.into()), ("state", "active_allocated".into())]);
    case("51 no requested_size", with_blocks(vec![bare]), &Note, &["without `requested_size`"]);
    for (id, says) in [
        (Py::List(vec![0.into(), 7.into()]), "MemPool 7"),
        (Py::Tuple(vec![0.into(), 0.into(), 1.into()]), "a pool id that is no pair"),
    ] {
        let mut one = segment(0, BASE, SMALL, vec![live(0, SMALL, 5)]);
        if let Py::Dict(pairs) = &mut one {
            pairs.retain(|(key, _)| !matches!(key, Py::Str(key) if key == "segment_pool_id"));
            pairs.push(("segment_pool_id".into(), id));
        }
        case("57 a pool id", pickle(&dict([("segments", Py::List(vec![one]))]), 4), &Note, &[says]);
    }
    let maps = vec![event("segment_map", BASE, SMALL, 1, Py::None)];
    case("58 unpaired", pickle(&traced(maps), 4), &Note, &["not paired", "\"complete\": false"]);
    let mut host =
        vec![("host_traces".into(), Py::List(vec![Py::List(vec![event("alloc", BASE, 999, 1, Py::None)])]))];
    let Py::Dict(pairs) = step() else { unreachable!() };
    host.extend(pairs);
    host.push(("future_key".into(), 1.into()));
    case(
        "61 the host",
        pickle(&Py::Dict(host), 4),
        &Note,
        &["pinned host memory", "the unknown key `future_key`", "\"requested_bytes\": 6000"],
    );
    let mut other = step();
    if let Py::Dict(pairs) = &mut other {
        pairs[0].1 = Py::List(vec![]);
    }
    case("62 another end", pickle(&other, 4), &Note, &["differ by 2000", "\"complete\": false"]);
    let waiting = |state: &str| with_blocks(vec![block(BASE, SMALL, 9, state, Py::None)]);
    for state in ["active_pending_free", "active_awaiting_free"] {
        case("63 pending", waiting(state), &Note, &["\"pending_free_end_bytes\": 2097152"]);
    }
}

#[test]
fn g_paths() {
    let bench = Bench::new().file("x.pickle", pickle(&step(), 4));
    assert!(bench.refusal("read nowhere.pickle").contains("no such file"));
    assert!(bench.refusal("read .").contains("a directory"));
    assert!(bench.refusal("read -").contains("nothing came"));
    let said = bench.refusal("read x.pickle -o x.pickle --force");
    assert!(said.contains("the output is one of the inputs"), "{said}");
    assert!(
        bench.refusal("read x.pickle --save x.pickle --force").contains("the output is one of the inputs")
    );
    assert!(bench.refusal("read x.pickle -o gone/a.json").contains("its folder does not exist"));
    #[cfg(unix)]
    {
        let fifo = bench.path("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert!(bench.refusal("read /dev/zero").contains("neither a file nor a pipe"));
        assert!(bench.refusal("read fifo").contains("a pipe that nobody writes to"));
        std::os::unix::fs::symlink(bench.path("gone"), bench.path("link")).unwrap();
        assert!(bench.refusal("read link").contains("a symbolic link to a file that does not exist"));
        let piped = std::process::Command::new("sh")
            .args(["-c", "cat x.pickle | \"$0\" read - --format json", env!("CARGO_BIN_EXE_peakledger")])
            .current_dir(bench.path(""))
            .output()
            .unwrap();
        assert_eq!(piped.status.code(), Some(0));
        assert!(String::from_utf8(piped.stdout).unwrap().contains("\"requested_bytes\": 6000"));
    }
}

/// 110: whatever a file is called, it is read, and its name acts on nothing. 111: what cannot be written leaves nothing.
#[test]
#[cfg(unix)]
fn g_names_and_outputs() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let long = "n".repeat(240);
    for name in [
        &b"a\nb\"c'd.pickle"[..],
        b"\xff\xfe.pickle",
        b"\x1b[31mred.pickle",
        "\u{202e}elkcip".as_bytes(),
        long.as_bytes(),
    ] {
        let bench = Bench::new();
        let name = OsString::from_vec(name.to_vec());
        std::fs::write(bench.path("").join(&name), pickle(&step(), 4)).unwrap();
        let ran = bench.command("read --format json").arg(&name).output().unwrap();
        assert_eq!(ran.status.code(), Some(0), "{name:?}: {}", String::from_utf8_lossy(&ran.stderr));
        let table = bench.command("read").arg(&name).output().unwrap().stdout;
        let table = String::from_utf8(table).unwrap();
        assert!(table.contains("peak ") && !table.contains(['\u{1b}', '\u{202e}']), "{table}");
    }
    let bench = Bench::new().file("x.pickle", pickle(&step(), 4)).file("there.json", "kept");
    assert!(bench.refusal("read x.pickle -o there.json").contains("exists"));
    assert_eq!(bench.read("there.json"), "kept");
    std::fs::create_dir(bench.path("folder")).unwrap();
    assert!(bench.refusal("read x.pickle -o folder --force").contains("help: "));
    if std::path::Path::new("/dev/full").exists() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = bench.command("read x.pickle").stdout(full).output().unwrap();
        assert_eq!(ran.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&ran.stderr).contains("standard output: cannot be written"));
    }
    assert_eq!(bench.names(), ["folder", "there.json", "x.pickle"], "no half file");
}

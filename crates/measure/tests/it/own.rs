//! Own snapshots: small, written by the tests, with known figures.

use crate::writer::{Py, dict, pickle};
use peakledger_input::{Binary, Problem};
use peakledger_measure::snapshot::{Options, Snapshot, read};

/// 2 MiB.
pub(crate) const SMALL: i64 = 2 << 20;
/// Where the segments of the own snapshots begin.
pub(crate) const BASE: i64 = 0x7f00_0000_0000;

pub(crate) fn frame(file: &str, line: i128, name: &str) -> Py {
    dict([("name", name.into()), ("filename", file.into()), ("line", Py::Int(line))])
}

/// A stack that the events of one call share: number 100 and on.
pub(crate) fn stack(number: u32) -> Py {
    let torch = Py::Shared(
        1,
        Box::new(frame("/env/lib/python3.12/site-packages/torch/nn/functional.py", 10, "linear")),
    );
    let user = Py::Shared(10 + number, Box::new(frame("/proj/train.py", i128::from(number), "step")));
    Py::Shared(100 + number, Box::new(Py::List(vec![torch, user])))
}

pub(crate) fn event(action: &str, addr: i64, size: i64, time: i64, stack: Py) -> Py {
    dict([
        ("action", action.into()),
        ("addr", addr.into()),
        ("size", size.into()),
        ("stream", 0.into()),
        ("time_us", time.into()),
        ("compile_context", "N/A".into()),
        ("user_metadata", "".into()),
        ("frames", stack),
    ])
}

pub(crate) fn block(address: i64, size: i64, requested: i64, state: &str, frames: Py) -> Py {
    dict([
        ("address", address.into()),
        ("size", size.into()),
        ("requested_size", requested.into()),
        ("state", state.into()),
        ("frames", frames),
    ])
}

pub(crate) fn segment(device: i64, address: i64, size: i64, blocks: Vec<Py>) -> Py {
    dict([
        ("device", device.into()),
        ("address", address.into()),
        ("total_size", size.into()),
        ("stream", 0.into()),
        ("segment_type", if size == SMALL { "small" } else { "large" }.into()),
        ("segment_pool_id", Py::Tuple(vec![0.into(), 0.into()])),
        ("is_expandable", Py::Bool(false)),
        ("frames", Py::List(Vec::new())),
        ("blocks", Py::List(blocks)),
    ])
}

pub(crate) fn annotation(stage: &str, name: &str, time: i64) -> Py {
    dict([("stage", stage.into()), ("name", name.into()), ("device", 0.into()), ("time_us", time.into())])
}

/// A step on one segment: weights of 1000 bytes from before, an activation of 3000, a gradient of 2000 that stays.
///
/// Blocks: 1024 at 0, 3072 at 1024, 2048 at 4096; the activation is freed.
pub(crate) fn events() -> Vec<Py> {
    vec![
        event("alloc", BASE + 1024, 3000, 20, stack(1)),
        event("alloc", BASE + 4096, 2000, 40, stack(2)),
        event("free_requested", BASE + 1024, 3000, 50, stack(3)),
        event("free_completed", BASE + 1024, 3000, 50, stack(3)),
    ]
}

pub(crate) fn segments() -> Vec<Py> {
    let blocks = vec![
        block(BASE, 1024, 1000, "active_allocated", Py::List(Vec::new())),
        block(BASE + 1024, 3072, 777, "inactive", Py::List(Vec::new())),
        block(BASE + 4096, 2048, 2000, "active_allocated", stack(2)),
        block(BASE + 6144, SMALL - 6144, 0, "inactive", Py::List(Vec::new())),
    ];
    vec![segment(0, BASE, SMALL, blocks)]
}

pub(crate) fn step() -> Py {
    dict([
        ("segments", Py::List(segments())),
        ("device_traces", Py::List(vec![Py::List(events())])),
        (
            "allocator_settings",
            dict([
                ("PYTORCH_CUDA_ALLOC_CONF", "".into()),
                ("max_split_size", Py::Int(-1)),
                ("garbage_collection_threshold", Py::Float(0.0)),
                ("roundup_power2_divisions", dict([("1", 0.into()), ("2", 0.into())])),
            ]),
        ),
        (
            "external_annotations",
            Py::List(vec![
                annotation("START", "## forward ##", 10),
                annotation("END", "## forward ##", 30),
                annotation("START", "## backward ##", 35),
                annotation("END", "## backward ##", 60),
            ]),
        ),
    ])
}

/// Reads bytes as a file of that name.
pub(crate) fn open(bytes: impl Into<Vec<u8>>) -> Result<Snapshot, Problem> {
    with(bytes, Options::default())
}

/// Reads what is sound of them.
pub(crate) fn salvage(bytes: impl Into<Vec<u8>>) -> Result<Snapshot, Problem> {
    with(bytes, Options { salvage: true })
}

fn with(bytes: impl Into<Vec<u8>>, options: Options) -> Result<Snapshot, Problem> {
    read(&mut Binary::from_bytes("x.pickle", bytes)?, options, &mut |_| {})
}

pub(crate) fn open_value(value: &Py) -> Result<Snapshot, Problem> {
    open(pickle(value, 4))
}

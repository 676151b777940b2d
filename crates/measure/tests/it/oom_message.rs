//! Every wording of an out-of-memory message, and what is made of it.

use crate::shared;
use peakledger_core::Bytes;
use peakledger_input::{Limit, Source};
use peakledger_measure::oom_message::{Cause, OOM_TEXT_LIMIT, OomMessage, Rounded, read};
use proptest::prelude::*;

fn all(text: &str) -> Vec<OomMessage> {
    read(&Source::from_text("log", text)).unwrap()
}

fn one(text: &str) -> OomMessage {
    let [message] = &*all(text) else { panic!("one message in {text}") };
    message.clone()
}

fn figure(text: &str) -> Option<Rounded> {
    one(&format!("Tried to allocate {text}.")).asked
}

const NEW: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 898.00 MiB. GPU 3 has a total capacity of 79.10 GiB \
of which 641.25 MiB is free. Process 411 has 3.25 GiB memory in use. Including non-PyTorch memory, this process has 75.21 GiB memory \
in use. 76.00 GiB allowed; Of the allocated memory 71.30 GiB is allocated by PyTorch, with 2.50 GiB allocated in private pools (e.g., \
CUDA Graphs), and 3.11 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting \
PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";

#[test]
fn the_newest_wording_is_read_to_its_last_figure() {
    let message = one(NEW);
    let said = |figure: Option<Rounded>| figure.unwrap().to_string();
    assert_eq!((message.device, message.rank, message.line, message.times), (Some(3), None, 1, 1));
    assert_eq!(said(message.asked), "898.00 MiB");
    assert_eq!([said(message.capacity), said(message.free)], ["79.10 GiB", "641.25 MiB"]);
    assert_eq!([said(message.allocated), said(message.unallocated)], ["71.30 GiB", "3.11 GiB"]);
    assert_eq!([said(message.private_pools), said(message.this_process)], ["2.50 GiB", "75.21 GiB"]);
    assert_eq!(said(message.limit), "76.00 GiB");
    let [other] = &*message.processes else { panic!("one other process") };
    assert_eq!((other.pid, said(other.bytes)), (411, "3.25 GiB".to_owned()));
    assert_eq!(message.explain().cause, Cause::Fragmented);
}

#[test]
fn the_older_wordings_say_reserved_in_total_or_cached() {
    let message = one(
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 10.92 GiB total capacity; 9.70 GiB already allocated; \
        11.50 MiB free; 9.90 GiB reserved in total by PyTorch)",
    );
    assert_eq!(message.device, Some(1));
    let unallocated = message.unallocated.unwrap();
    assert_eq!(format!("{unallocated:#}"), "204.80 MiB ± 10.24 MiB", "a difference of two rounded figures");
    assert_eq!(message.explain().cause, Cause::Fragmented);
    let old = one(
        "Tried to allocate 2.00 GiB (GPU 0; 11.93 GiB total capacity; 4.00 GiB already allocated; 1.33 GiB free; 512.00 KiB cached)",
    );
    assert_eq!(old.unallocated.unwrap().to_string(), "512.00 KiB");
    assert_eq!(old.explain().cause, Cause::HeldByOthers, "6.6 GiB are outside of the allocator");
    let limited = one(
        "Tried to allocate 5.59 GiB (GPU 0; 11.17 GiB total capacity; 0 bytes already allocated; 10.91 GiB free; 5.58 GiB allowed; \
        0 bytes reserved in total by PyTorch)",
    );
    assert_eq!((limited.limit, limited.explain().cause), (figure("5.58 GiB"), Cause::Limit));
}

#[test]
fn the_drivers_pool_tells_its_own_figures() {
    let text = "Allocation on device 5 would exceed allowed memory. (out of memory)\nCurrently allocated     : 54.14 GiB\nRequested               : 686.41 MiB\n\
        Device limit            : 79.35 GiB\nFree (according to CUDA): 27.19 MiB\nPyTorch limit (set by user-supplied memory fraction)\n\
                        : 17179869184.00 GiB";
    let message = one(text);
    assert_eq!((message.device, message.limit), (Some(5), None), "2^64 bytes are no limit");
    assert_eq!(message.asked, figure("686.41 MiB"));
    assert_eq!(message.explain().cause, Cause::HeldByOthers);
}

/// Each cause, and the sentences that a person gets.
#[test]
fn what_it_means_is_said_in_plain_words() {
    let tell = |text: &str| {
        let explanation = one(text).explain();
        format!("{}\nhelp: {}", explanation.sentences.join("\n"), explanation.mend)
    };
    insta::assert_snapshot!(tell(NEW), @r#"
    Fragmentation: PyTorch held 3.11 GiB that nobody used, enough for the 898.00 MiB, but in pieces that are each too small.
    3.26 GiB ± 10.25 MiB of the card are outside of this process: other processes, the driver.
    819.20 MiB ± 15.36 MiB of this process are outside of PyTorch's allocator: the CUDA context, libraries, NCCL.
    2.50 GiB of what counts as allocated lie unused in private pools (CUDA graphs, memory pools).
    help: set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before 2.9), which lets pieces grow together; a memory snapshot shows who sits between them
    "#);
    let card = |asked: &str, free: &str, unallocated: &str, rest: &str| {
        format!(
            "Tried to allocate {asked}. GPU 0 has a total capacity of 24.00 GiB of which {free} is free. {rest}Of the allocated memory 10.00 GiB is allocated by PyTorch, and {unallocated} is reserved by PyTorch but unallocated."
        )
    };
    insta::assert_snapshot!(tell(&card(
        "2.00 GiB",
        "1.00 GiB",
        "1.50 GiB",
        "Process 7 has 12.60 GiB memory in use. "
    )), @r#"
    Fragmentation: 1.50 GiB unused in PyTorch's pieces and 1.00 GiB free on the device are enough together for the 2.00 GiB, but neither is alone.
    Process 7 is taken for this one: it is the only one, and in a container PyTorch does not know its own number.
    10.40 GiB ± 15.36 MiB of the card are outside of this process: other processes, the driver.
    1.10 GiB ± 15.36 MiB of this process are outside of PyTorch's allocator: the CUDA context, libraries, NCCL.
    help: set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before 2.9), which lets pieces grow together; a memory snapshot shows who sits between them
    "#);
    insta::assert_snapshot!(tell(&card(
        "4.00 GiB",
        "1.00 GiB",
        "500.00 MiB",
        "Including non-PyTorch memory, this process has 10.70 GiB memory in use. "
    )), @r#"
    4.00 GiB were asked for, 2.51 GiB ± 10.25 MiB more than is free or unused: what is outside of PyTorch's allocator on this card is in the way.
    12.30 GiB ± 15.36 MiB of the card are outside of this process: other processes, the driver.
    216.80 MiB ± 10.25 MiB of this process are outside of PyTorch's allocator: the CUDA context, libraries, NCCL.
    help: end the other processes (`nvidia-smi` names them), or use a card of your own
    "#);
    insta::assert_snapshot!(tell(&card(
        "14.10 GiB",
        "1.00 GiB",
        "0 bytes",
        "Including non-PyTorch memory, this process has 10.70 GiB memory in use. "
    )), @r#"
    Too much: 14.10 GiB were asked for, and all that is free (1.00 GiB) and all that PyTorch held unused (0 B) are 13.10 GiB ± 10.24 MiB too little.
    12.30 GiB ± 15.36 MiB of the card are outside of this process: other processes, the driver.
    716.80 MiB ± 10.24 MiB of this process are outside of PyTorch's allocator: the CUDA context, libraries, NCCL.
    help: lower the peak by what is missing here, and more where the step goes higher later: a smaller micro-batch or sequence, --recompute full, offloading, a larger card; `peakledger plan` and `fit` say what each buys
    "#);
    insta::assert_snapshot!(tell(&card("20.00 MiB", "1.00 GiB", "0 bytes", "")), @r#"
    The device had 1.00 GiB free and still refused 20.00 MiB: what it calls free was not to be had.
    PyTorch asks the device for whole segments: 20.00 MiB stand for any request of 1 MiB to 10 MiB.
    13.00 GiB ± 15.36 MiB of the card are outside of PyTorch's allocator: CUDA contexts, libraries, other processes; the message does not tell them apart.
    help: look for a limit outside of PyTorch (a share of a card, a container, Windows), a process that took it just then, or a driver that holds it back
    "#);
    insta::assert_snapshot!(tell(&card("30.00 GiB", "1.00 GiB", "0 bytes", "")), @r#"
    30.00 GiB were asked for at once, 6.00 GiB ± 10.24 MiB more than the whole card has: it never fits there, even alone.
    13.00 GiB ± 15.36 MiB of the card are outside of PyTorch's allocator: CUDA contexts, libraries, other processes; the message does not tell them apart.
    help: no batch of that size fits: halve the largest tensor (micro-batch, sequence length, logits), or use a larger card
    "#);
    insta::assert_snapshot!(tell("CUDA out of memory. Tried to allocate more than 1EB memory."), @r#"
    More than 1 EB was asked for: no memory is short, a size was computed wrongly (a negative number, a broken shape).
    help: look at the shape in the line of the traceback
    "#);
}

#[test]
fn what_rounding_leaves_open_is_called_so() {
    let near = |unallocated: &str| {
        one(&format!("Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 10.00 MiB is free. Of the allocated memory 6.00 GiB is allocated by PyTorch, and {unallocated} is reserved by PyTorch but unallocated.")).explain()
    };
    assert_eq!((near("1.00 GiB").cause, near("1.00 GiB").certain), (Cause::Fragmented, false));
    assert_eq!((near("1.02 GiB").cause, near("1.02 GiB").certain), (Cause::Fragmented, true));
    assert!(near("1.00 GiB").sentences[1].contains("rounding decides"));
}

#[test]
fn a_log_of_several_ranks_gives_each_message_once() {
    let line = |rank: u32, asked: &str| {
        format!(
            "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU {rank} has a total\ncapacity of 8.00 GiB of which 1.00 MiB is free.\n"
        )
    };
    let log = format!(
        "step 1\n{}Traceback (most recent call last):\n{}{}",
        line(0, "2.00 GiB"),
        line(1, "3.00 GiB"),
        line(0, "2.00 GiB")
    );
    let messages = all(&log);
    let told: Vec<_> = messages.iter().map(|m| (m.line, m.times, m.rank, m.device)).collect();
    assert_eq!(told, [(2, 2, Some(0), Some(0)), (5, 1, Some(1), Some(1))]);
    assert!(messages[0].capacity.is_some(), "a message may be broken over lines");
}

#[test]
fn a_text_without_a_message_says_what_it_is_instead() {
    let said = |text: &str| read(&Source::from_text("log", text)).unwrap_err().to_string();
    insta::assert_snapshot!(said("step 1: loss 2.3"), @"
    log: no out-of-memory message in it
      help: paste the lines from `CUDA out of memory. Tried to allocate …` to their end
    ");
    insta::assert_snapshot!(said("RuntimeError: CUDA error: out of memory"), @"
    log: a library's own out-of-memory error, which tells no figures
      help: it was no tensor that found no room: something outside of PyTorch's allocator did; see what `nvidia-smi` shows
    ");
    assert!(said("MPS backend out of memory (MPS allocated: 1 GB).").contains("MPS"));
    assert!(said("torch.OutOfMemoryError: CUDA out of memory.").contains("without its figures"));
}

/// Figures of real messages, counted by hand from what each says.
#[test]
fn real_messages_are_read() {
    let Some(path) = shared::data("oom_texts.jsonl") else { return };
    let rows = std::fs::read_to_string(path).unwrap();
    let causes: Vec<(String, &str, Option<String>)> = rows
        .lines()
        .map(|row| {
            let row: serde_json::Value = serde_json::from_str(row).unwrap();
            let message = one(row["text"].as_str().unwrap());
            // every figure that the text holds but the limit of 2^64 bytes is in a field
            let text = row["text"].as_str().unwrap();
            let written =
                ["MiB", "GiB", "KiB", "bytes"].iter().map(|unit| text.matches(unit).count()).sum::<usize>();
            let fields = [
                message.asked,
                message.capacity,
                message.free,
                message.allocated,
                message.unallocated,
                message.private_pools,
                message.this_process,
                message.limit,
            ];
            let read = fields.iter().flatten().count()
                + message.processes.len()
                + text.matches("17179869184.00").count();
            assert_eq!(read, written, "{text}");
            let explanation = message.explain();
            let source = row["source"].as_str().unwrap().split(' ').next().unwrap().to_owned();
            (source, explanation.cause.as_str(), explanation.short_by.map(|short| format!("{short:#}")))
        })
        .collect();
    let short = |source, cause, by: Option<&str>| (String::from(source), cause, by.map(str::to_owned));
    let expected = [
        short("pytorch/pytorch", "larger_than_the_card", Some("4.07 GiB ± 10.24 MiB")),
        short("pytorch/pytorch#37250", "fragmented_with_free", None),
        short("Li-Chongyi/Zero-DCE#52", "held_by_others", Some("675.84 MiB ± 20.48 MiB")),
        short("jhc13/taggui#188", "free_yet_refused", None),
        short("OpenHelix-Team/cobra#24", "fragmented", None),
        short("murong-xu/CADS#4", "too_much", Some("716.80 MiB ± 15.36 MiB")),
        short("huggingface/meshgen#7", "too_much", Some("872.52 MiB ± 10.24 KiB")),
        short("Tianhao-Qi/Mask2DiT#4", "fragmented", None),
        short("pytorch/pytorch#110194", "held_by_others", Some("659.22 MiB ± 10.24 KiB")),
    ];
    assert_eq!(causes, expected);
}

/// The figure of a size as `format_size` writes it holds that size.
fn format_size(size: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // as PyTorch does
    let of = |shift: u32| size as f64 / (1u64 << shift) as f64;
    match size {
        0..=1024 => format!("{size} bytes"),
        1025..=1_048_576 => format!("{:.2} KiB", of(10)),
        1_048_577..=1_073_741_824 => format!("{:.2} MiB", of(20)),
        _ => format!("{:.2} GiB", of(30)),
    }
}

proptest! {
    #[test]
    fn a_figure_holds_the_size_that_it_rounds(size in prop_oneof![0u64..2048, 0u64..1 << 21, 0u64..1 << 31, 0u64..1 << 50]) {
        let figure = figure(&format_size(size)).unwrap();
        prop_assert!(figure.bytes.get().abs_diff(size) <= figure.off_by.get(), "{figure:?} for {size}");
    }

    #[test]
    fn any_piece_of_a_message_ends_in_an_answer_or_an_error(from in 0usize..600, to in 0usize..600, byte in any::<char>()) {
        let mut text: Vec<char> = NEW.chars().collect();
        let at = from % text.len();
        text[at] = byte;
        let text: String = text.iter().skip(from.min(to)).take(from.abs_diff(to)).collect();
        if let Ok(messages) = read(&Source::from_text("log", text)) {
            messages.iter().for_each(|message| assert!(!message.explain().sentences.is_empty()));
        }
    }
}

#[test]
fn a_log_that_is_too_long_is_refused() {
    let limit = Limit { bytes: Bytes::new(3), ..OOM_TEXT_LIMIT };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), NEW).unwrap();
    assert!(Source::open(file.path(), limit).is_err());
}

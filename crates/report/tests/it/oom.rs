//! An out-of-memory message.

use super::{holds_on_any_terminal, said};
use peakledger_input::Source;
use peakledger_measure::oom_message::read;
use peakledger_report::{Format, OomReport};

#[test]
fn each_format() {
    let text = "step 7\n[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 1 has a total capacity of \
                39.56 GiB of which 1.25 GiB is free. Including non-PyTorch memory, this process has 38.10 GiB memory in use. Of the \
                allocated memory 33.00 GiB is allocated by PyTorch, and 4.60 GiB is reserved by PyTorch but unallocated.\n";
    let messages = read(&Source::from_text("train.log", text)).unwrap();
    let report = OomReport { name: "train.log", messages: &messages };
    insta::assert_snapshot!(said(&report, Format::Table), @r#"
    out of memory on GPU 1: 3.50 GiB asked for (line 2, rank 1)
    Fragmentation: PyTorch held 4.60 GiB that nobody used, enough for the 3.50 GiB, but in pieces that
    are each too small.
    215.04 MiB ± 15.36 MiB of the card are outside of this process: other processes, the driver.
    512.00 MiB ± 15.36 MiB of this process are outside of PyTorch's allocator: the CUDA context,
    libraries, NCCL.
    help: set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before 2.9), which
          lets pieces grow together; a memory snapshot shows who sits between them

                                   size    off by
    asked for                  3.50 GiB  5.12 MiB
    the card                  39.56 GiB  5.12 MiB
    free on it                 1.25 GiB  5.12 MiB
    allocated by PyTorch      33.00 GiB  5.12 MiB
    reserved and unallocated   4.60 GiB  5.12 MiB
    this process              38.10 GiB  5.12 MiB
    a message has two digits after the point: each figure may be off by what is beside it
    "#);
    insta::assert_snapshot!(said(&report, Format::Csv), @r#"
    line,times,rank,device,cause,short_by_bytes,asked_bytes,capacity_bytes,free_bytes,allocated_bytes,reserved_unallocated_bytes,this_process_bytes,limit_bytes,outside_allocator_bytes
    2,1,1,1,fragmented,,3758096384,42477226557,1342177280,35433480192,4939212390,40909563494,,762356695
    "#);
    insta::assert_snapshot!(said(&report, Format::Markdown), @r#"
    **out of memory on GPU 1: 3.50 GiB asked for (line 2, rank 1)**

    - Fragmentation: PyTorch held 4.60 GiB that nobody used, enough for the 3.50 GiB, but in pieces that are each too small.
    - 215.04 MiB ± 15.36 MiB of the card are outside of this process: other processes, the driver.
    - 512.00 MiB ± 15.36 MiB of this process are outside of PyTorch's allocator: the CUDA context, libraries, NCCL.

    Help: set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before 2.9), which lets pieces grow together; a memory snapshot shows who sits between them

    | figure | size | off by |
    | --- | ---: | ---: |
    | asked for | 3.50 GiB | 5.12 MiB |
    | the card | 39.56 GiB | 5.12 MiB |
    | free on it | 1.25 GiB | 5.12 MiB |
    | allocated by PyTorch | 33.00 GiB | 5.12 MiB |
    | reserved and unallocated | 4.60 GiB | 5.12 MiB |
    | this process | 38.10 GiB | 5.12 MiB |

    a message has two digits after the point: each figure may be off by what is beside it
    "#);
    let json: serde_json::Value = serde_json::from_str(&said(&report, Format::Json)).unwrap();
    assert_eq!(json["messages"][0]["cause"], "fragmented");
    assert_eq!(json["messages"][0]["reserved_unallocated"]["off_by_bytes"], 5_368_710);
    holds_on_any_terminal(&report);
}

//! How fast a card is at its best, by its maker's word: peak rates of arithmetic, memory and host link, and of the network of
//! the machine that its maker puts it into.

use crate::parallel::Parallel;
use serde::Deserialize;

/// Peak rates of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speeds {
    /// Bytes a second to and from its memory.
    pub memory: u64,
    /// FLOP a second in fp32, outside tensor cores: torch leaves tf32 off for products unless it is asked for.
    pub fp32: u64,
    /// Dense FLOP a second in fp16 with fp32 sums, where it has more than fp32's.
    pub fp16: Option<u64>,
    /// Dense FLOP a second in bf16 with fp32 sums, where it has any.
    pub bf16: Option<u64>,
    /// Its way to the host.
    pub host_link: HostLink,
    /// Bytes a second to other cards of its node, where NVLink goes there.
    pub nvlink: Option<u64>,
    /// The network between nodes, where there is a machine of reference.
    pub network: Option<Network>,
    /// The sheet that the figures are of. Most were entered from memory and are not checked against it yet: all but
    /// H100, H200, H20, B200, A100, A30, V100, T4, L40S, L40 and RTX 4090 (datasheets as Lightning's
    /// `fabric/utilities/throughput.py` and published specification lists quote them), and the memory rates of
    /// A40, A10 and A10G.
    pub source: String,
}

/// What a machine has of a network between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Bits a second each way, as adapters are sold, for each of its GPUs.
    pub bits_per_second: u64,
    /// The machine.
    pub machine: String,
    /// Where its adapters are told.
    pub source: String,
}

impl Speeds {
    /// Bits a second over the network for each GPU: as asked for, or those of the machine of reference.
    pub fn network_bits_per_second(&self, parallel: &Parallel) -> Option<u64> {
        let of_reference = self.network.as_ref().map(|network| network.bits_per_second);
        parallel.network_bits_per_second.or(of_reference)
    }

    /// Bytes a second that it sends to other cards of its node, and over what: NVLink, or the link to the host.
    pub fn to_other_cards(&self) -> (u64, &'static str) {
        match self.nvlink {
            Some(rate) => (rate, "NVLink"),
            None => (self.host_link.bytes_per_second(), self.host_link.as_str()),
        }
    }
}

/// A way between card and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum HostLink {
    /// 8 GT/s a lane.
    #[serde(rename = "PCIe 3.0 x16")]
    Pcie3x16,
    /// 16 GT/s a lane.
    #[serde(rename = "PCIe 4.0 x16")]
    Pcie4x16,
    /// 16 GT/s a lane, and half as many lanes.
    #[serde(rename = "PCIe 4.0 x8")]
    Pcie4x8,
    /// 32 GT/s a lane.
    #[serde(rename = "PCIe 5.0 x16")]
    Pcie5x16,
    /// Between Grace and Hopper.
    #[serde(rename = "NVLink-C2C")]
    NvlinkC2c,
}

impl HostLink {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            HostLink::Pcie3x16 => "PCIe 3.0 x16",
            HostLink::Pcie4x16 => "PCIe 4.0 x16",
            HostLink::Pcie4x8 => "PCIe 4.0 x8",
            HostLink::Pcie5x16 => "PCIe 5.0 x16",
            HostLink::NvlinkC2c => "NVLink-C2C",
        }
    }

    /// Bytes a second each way: lanes at their rate less the 128b/130b code (PCI Express Base Specification); for
    /// NVLink-C2C half of the 900 GB/s that both ways have (NVIDIA Grace Hopper whitepaper).
    pub const fn bytes_per_second(self) -> u64 {
        let (transfers, lanes) = match self {
            HostLink::NvlinkC2c => return 450_000_000_000,
            HostLink::Pcie3x16 => (8_000_000_000, 16),
            HostLink::Pcie4x16 => (16_000_000_000, 16),
            HostLink::Pcie4x8 => (16_000_000_000, 8),
            HostLink::Pcie5x16 => (32_000_000_000, 16),
        };
        transfers * lanes * 128 / 130 / 8
    }
}

/// The rates as `gpus.json` has them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    memory_gb_per_s: u64,
    fp32_gflops: u64,
    fp16_gflops: Option<u64>,
    bf16_gflops: Option<u64>,
    host_link: HostLink,
    /// Each way: half of what sheets say of both.
    nvlink_gb_per_s: Option<u64>,
    network: Option<NetworkEntry>,
    source: String,
}

/// The network of the machine of reference.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkEntry {
    gbps_per_gpu: u64,
    machine: String,
    source: String,
}

impl From<Entry> for Speeds {
    fn from(entry: Entry) -> Speeds {
        let giga = |figure: u64| figure.saturating_mul(1_000_000_000);
        Speeds {
            memory: giga(entry.memory_gb_per_s),
            fp32: giga(entry.fp32_gflops),
            fp16: entry.fp16_gflops.map(giga),
            bf16: entry.bf16_gflops.map(giga),
            host_link: entry.host_link,
            nvlink: entry.nvlink_gb_per_s.map(giga),
            network: entry.network.map(|network| Network {
                bits_per_second: giga(network.gbps_per_gpu),
                machine: network.machine,
                source: network.source,
            }),
            source: entry.source,
        }
    }
}

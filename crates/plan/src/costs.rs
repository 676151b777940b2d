//! What costs would take on a card at its peak rates. This is theory: the least that the arithmetic and the traffic take,
//! not how long a step runs. What a card really reaches of its rates has to be measured.

use crate::catalogue::Speeds;
use crate::parallel::Parallel;
use crate::torch::{Costs, Dtype, Flops};
use std::fmt;

/// A length of time, exact: 10⁻¹² seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Picoseconds(pub u128);

impl Picoseconds {
    /// The difference to another time, negative where that is longer.
    pub fn minus(self, other: Picoseconds) -> i128 {
        let difference = i128::try_from(self.0.abs_diff(other.0)).unwrap_or(i128::MAX);
        if self < other { -difference } else { difference }
    }
}

impl fmt::Display for Picoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_units = |unit: u128| (self.0 + unit / 2) / unit;
        let (hundredths, unit) = match self.0 {
            0 => (0, "s"),
            1..1_000_000_000 => (in_units(10_000), "µs"),
            1_000_000_000..1_000_000_000_000 => (in_units(10_000_000), "ms"),
            _ => (in_units(10_000_000_000), "s"),
        };
        match hundredths {
            0 => write!(f, "0 {unit}"),
            _ => write!(f, "{}.{:02} {unit}", hundredths / 100, hundredths % 100),
        }
    }
}

/// What a step costs, in time at a card's peak rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TheoreticalTime {
    /// What a checkpoint computes again: its FLOPs at the rate of their type.
    pub recompute: Picoseconds,
    /// What goes over the host link, both ways one after the other.
    pub host: Picoseconds,
    /// What this rank sends to others: within its node at the rate at which its card sends to those beside it, between nodes
    /// at that of the network.
    pub sent: Picoseconds,
    /// The part of that which groups take that span nodes: as long as their bytes over the network take, or those within the
    /// node, whichever is longer.
    pub between_nodes: Picoseconds,
    /// The whole step by the roofline: products take as long as their FLOPs or their bytes, whichever is longer; all other
    /// ops take as long as their bytes; then what goes over the host link, and what is sent to other ranks. Nothing overlaps.
    pub step: Picoseconds,
}

/// Which rate there is none of, so that there is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// All of the card, or no card is named.
    Rates,
    /// Of this type, in which the card has no products.
    Type(Dtype),
    /// Of the network between nodes.
    Network,
}

impl TheoreticalTime {
    /// The time of costs at these rates, and at that of the network that is asked for.
    ///
    /// # Errors
    /// Says which rate is not known.
    pub fn of(costs: &Costs, speeds: &Speeds, parallel: &Parallel) -> Result<TheoreticalTime, Unknown> {
        let products = arithmetic(&costs.flops, speeds)?;
        let recompute = arithmetic(&costs.recomputed, speeds)?;
        let moved = |bytes| at_rate(bytes, speeds.memory);
        let over_link = costs.host.to_host.saturating_add(costs.host.from_host);
        let host = at_rate(over_link, speeds.host_link.bytes_per_second());
        let (rate, _) = speeds.to_other_cards();
        let network = match costs.sent.between_nodes {
            0 => 0,
            bytes => {
                let rate = speeds.network_bits_per_second(parallel).ok_or(Unknown::Network)?;
                at_rate(bytes.saturating_mul(8), rate)
            }
        };
        let between_nodes = network.max(at_rate(costs.sent.meanwhile, rate));
        let sent = at_rate(costs.sent.within_node, rate).saturating_add(between_nodes);
        let step = [products.max(moved(costs.product_bytes)), moved(costs.other_bytes), host, sent];
        let step = step.into_iter().fold(0, u128::saturating_add);
        Ok(TheoreticalTime {
            recompute: Picoseconds(recompute),
            host: Picoseconds(host),
            sent: Picoseconds(sent),
            between_nodes: Picoseconds(between_nodes),
            step: Picoseconds(step),
        })
    }
}

/// How long these FLOPs take, each type at its rate.
fn arithmetic(flops: &Flops, speeds: &Speeds) -> Result<u128, Unknown> {
    let types = [
        (Dtype::F32, flops.fp32, Some(speeds.fp32)),
        (Dtype::F16, flops.fp16, speeds.fp16),
        (Dtype::Bf16, flops.bf16, speeds.bf16),
    ];
    types.into_iter().try_fold(0_u128, |sum, (dtype, flops, rate)| match (flops, rate) {
        (0, _) => Ok(sum),
        (flops, Some(rate)) => Ok(sum.saturating_add(at_rate(flops, rate))),
        (_, None) => Err(Unknown::Type(dtype)),
    })
}

/// How many picoseconds an amount takes at so much a second.
fn at_rate(amount: u128, per_second: u64) -> u128 {
    amount.saturating_mul(1_000_000_000_000).checked_div(u128::from(per_second)).unwrap_or(u128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::card;
    use crate::torch::{HostBytes, SentBytes};

    fn of(costs: &Costs, speeds: &Speeds) -> Result<TheoreticalTime, Unknown> {
        TheoreticalTime::of(costs, speeds, &Parallel::default())
    }

    #[test]
    fn each_part_takes_its_time() {
        let speeds = card("a100-80gb").unwrap().speeds.unwrap();
        let costs = Costs {
            flops: Flops { bf16: 312_000_000_000_000, fp32: 19_500_000_000_000, fp16: 0 },
            recomputed: Flops { bf16: 78_000_000_000_000, ..Flops::default() },
            product_bytes: 2_039_000_000_000,
            other_bytes: 1_019_500_000_000,
            host: HostBytes { to_host: 63_015_384_615, from_host: 0 },
            sent: SentBytes { within_node: 150_000_000_000, ..SentBytes::default() },
        };
        let time = of(&costs, &speeds).unwrap();
        let second = 1_000_000_000_000;
        assert_eq!(time.recompute, Picoseconds(second / 4));
        assert_eq!(time.host.0 / 1000, 2 * second / 1000, "31.5 GB/s each way");
        assert_eq!(time.sent, Picoseconds(second / 2), "NVLink: 300 GB/s each way");
        let known = time.host.0 + time.sent.0;
        assert_eq!(time.step.0, 2 * second + second / 2 + known, "FLOPs hide the products' bytes");
    }

    #[test]
    fn a_type_without_a_rate_has_no_time() {
        let speeds = card("t4").unwrap().speeds.unwrap();
        let bf16 = Costs { flops: Flops { bf16: 1, ..Flops::default() }, ..Costs::default() };
        assert_eq!(of(&bf16, &speeds), Err(Unknown::Type(Dtype::Bf16)));
        let fp16 = Costs { flops: Flops { fp16: 65, ..Flops::default() }, ..Costs::default() };
        assert_eq!(of(&fp16, &speeds).unwrap().step, Picoseconds(1));
    }

    #[test]
    fn between_nodes_the_network_is_slower_or_the_node_is() {
        let second = 1_000_000_000_000;
        let h100 = card("h100-80gb").unwrap().speeds.unwrap();
        // 50 GB at 400 Gb/s, 450 GB over NVLink at 450 GB/s
        let alone = SentBytes { between_nodes: 50_000_000_000, ..SentBytes::default() };
        let sent = |sent| Costs { sent, ..Costs::default() };
        assert_eq!(of(&sent(alone), &h100).unwrap().sent, Picoseconds(second));
        let meanwhile = SentBytes { meanwhile: 900_000_000_000, ..alone };
        assert_eq!(
            of(&sent(meanwhile), &h100).unwrap().between_nodes,
            Picoseconds(2 * second),
            "NVLink is behind"
        );
        let both = SentBytes { meanwhile: 225_000_000_000, within_node: 450_000_000_000, ..alone };
        let time = of(&sent(both), &h100).unwrap();
        assert_eq!((time.between_nodes, time.sent), (Picoseconds(second), Picoseconds(2 * second)));
        let slow = Parallel { network_bits_per_second: Some(100_000_000_000), ..Parallel::default() };
        let time = TheoreticalTime::of(&sent(both), &h100, &slow).unwrap();
        assert_eq!((time.between_nodes, time.step), (Picoseconds(4 * second), Picoseconds(5 * second)));
        let rtx = card("rtx-4090").unwrap().speeds.unwrap();
        assert_eq!(of(&sent(alone), &rtx), Err(Unknown::Network));
        assert!(TheoreticalTime::of(&sent(alone), &rtx, &slow).is_ok());
        assert!(of(&Costs::default(), &rtx).is_ok(), "nothing goes between nodes");
    }
}

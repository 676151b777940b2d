//! The allocator's settings, as `PYTORCH_CUDA_ALLOC_CONF` says them.

use peakledger_core::block::{Cut, MIB, NON_SPLIT_ROUNDING, OWN_SEGMENT, Rounding};
use peakledger_input::{Problem, near, quoted};
use std::fmt;
use std::str::FromStr;

/// What changes how the allocator cuts, keeps and gives back. The default is torch's.
///
/// Read from PyTorch's own syntax; keys that change nothing on the device (`pinned_…`) are taken and left alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// `roundup_power2_divisions`: how requests are rounded up.
    pub rounding: Rounding,
    /// `max_split_size_mb` and `large_segment_size_mb`: how segments are cut, and how large they are.
    pub cut: Cut,
    /// `max_non_split_rounding_mb`, in bytes: how much larger than its request a block may be that is never cut.
    pub non_split_rounding: u64,
    /// `garbage_collection_threshold`: the part of the limit from which cached blocks are given back; 0 is off.
    pub garbage_collection_threshold: f64,
    /// `per_process_memory_fraction`: the part of the card that may be reserved; 1 is no limit.
    pub memory_fraction: f64,
    /// `expandable_segments`: whether segments are ranges of addresses that grow by pages.
    pub expandable_segments: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            rounding: Rounding::default(),
            cut: Cut::default(),
            non_split_rounding: NON_SPLIT_ROUNDING,
            garbage_collection_threshold: 0.0,
            memory_fraction: 1.0,
            expandable_segments: false,
        }
    }
}

/// The keys that decide bytes on the device.
const KEYS: [&str; 7] = [
    "max_split_size_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "expandable_segments",
    "per_process_memory_fraction",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
];

/// The keys that torch knows and that decide no bytes of a device's blocks: pinned host memory, locks, capture.
const IDLE: [&str; 13] = [
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "backend",
];

impl Settings {
    /// The most that may be reserved on a card of so many bytes (`setMemoryFraction`).
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // as torch does
    pub fn limit_on(&self, total: Option<u64>) -> Option<u64> {
        let total = total.filter(|_| self.memory_fraction < 1.0)?;
        Some((self.memory_fraction * total as f64) as u64)
    }

    /// The reserved bytes from which garbage is collected, under such a limit.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // as torch does
    pub(crate) fn garbage_threshold(&self, limit: u64) -> Option<u64> {
        let threshold = self.garbage_collection_threshold;
        (threshold > 0.0).then_some((threshold * limit as f64) as u64)
    }
}

impl FromStr for Settings {
    type Err = Problem;

    /// Reads `key:value,key:value`, as torch does: blanks are nothing, a value may be a list in brackets.
    fn from_str(text: &str) -> Result<Settings, Problem> {
        let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let mut settings = Settings::default();
        for part in parts(&plain)? {
            let Some((key, value)) = part.split_once(':') else {
                let mend = "write it as key:value, as in expandable_segments:True";
                return Err(Problem::anywhere(format!("{} is not key:value", quoted(part))).mend(mend));
            };
            settings.set(key, value)?;
        }
        settings.check()?;
        Ok(settings)
    }
}

/// The parts between commas that are not inside brackets.
fn parts(text: &str) -> Result<Vec<&str>, Problem> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            ',' if !inside => {
                parts.extend(text.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(Problem::anywhere("a `[` is not closed").mend("end the list with `]`"));
    }
    parts.extend(text.get(start..).filter(|rest| !rest.is_empty()));
    Ok(parts)
}

impl Settings {
    fn set(&mut self, key: &str, value: &str) -> Result<(), Problem> {
        match key {
            "max_split_size_mb" => self.cut.max_split_size = mebibytes(key, value, 0)?,
            "max_non_split_rounding_mb" => self.non_split_rounding = mebibytes(key, value, 0)?,
            "large_segment_size_mb" => self.cut.large_segment = mebibytes(key, value, OWN_SEGMENT / MIB + 1)?,
            "garbage_collection_threshold" => {
                let threshold = number(key, value)?;
                if !(threshold > 0.0 && threshold < 1.0) {
                    return Err(wrong(key, value, "a number between 0 and 1, both left out"));
                }
                self.garbage_collection_threshold = threshold;
            }
            "per_process_memory_fraction" => {
                let fraction = number(key, value)?;
                if !(0.0..=1.0).contains(&fraction) {
                    return Err(wrong(key, value, "a number from 0 to 1"));
                }
                self.memory_fraction = fraction;
            }
            "expandable_segments" => self.expandable_segments = boolean(key, value)?,
            "roundup_power2_divisions" => self.rounding.divisions = divisions(key, value)?,
            "backend" if value == "native" => {}
            "backend" => {
                let cause =
                    format!("{} is an allocator of its own, which nothing here replays", quoted(value));
                return Err(Problem::anywhere(cause)
                    .mend("only torch's native allocator is known: leave `backend` out"));
            }
            _ if IDLE.contains(&key) => {}
            _ => {
                let problem = Problem::anywhere(format!("torch knows no setting {}", quoted(key)));
                let known = KEYS.into_iter().chain(IDLE);
                return Err(problem.mend(match near(key, known) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the settings are {}", KEYS.join(", ")),
                }));
            }
        }
        Ok(())
    }

    /// What torch refuses of settings together.
    fn check(&self) -> Result<(), Problem> {
        let least = self.cut.large_segment;
        let rules = [
            ("max_split_size_mb", self.cut.max_split_size),
            ("max_non_split_rounding_mb", self.non_split_rounding),
        ];
        for (key, bytes) in rules {
            if bytes < least {
                let cause =
                    format!("`{key}` is {} MiB, less than a segment of {} MiB", bytes / MIB, least / MIB);
                return Err(Problem::anywhere(cause).mend(format!("use {} or more", least / MIB)));
            }
        }
        Ok(())
    }
}

fn wrong(key: &str, value: &str, is: &str) -> Problem {
    Problem::anywhere(format!("`{key}` is {is}, not {}", quoted(value)))
        .mend("see PYTORCH_CUDA_ALLOC_CONF in torch's notes on CUDA")
}

fn number(key: &str, value: &str) -> Result<f64, Problem> {
    value.parse().map_err(|_| wrong(key, value, "a number"))
}

fn boolean(key: &str, value: &str) -> Result<bool, Problem> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err(Problem::anywhere(format!("`{key}` is True or False, not {}", quoted(value)))
            .mend("write it with a capital letter, as torch asks for")),
    }
}

fn mebibytes(key: &str, value: &str, least: u64) -> Result<u64, Problem> {
    let count: u64 = value.parse().map_err(|_| wrong(key, value, "a whole number of MiB"))?;
    if count < least {
        return Err(wrong(key, value, &format!("{least} MiB or more")));
    }
    Ok(count.min(u64::MAX / MIB) * MIB)
}

/// `4`, or `[256:1,512:2,>:4]`: from an interval in MiB on, and below the first as for the first.
fn divisions(key: &str, value: &str) -> Result<[u32; 16], Problem> {
    let division = |text: &str| match text.parse::<u32>() {
        Ok(0) => Ok(0),
        Ok(count) if count.is_power_of_two() => Ok(count),
        _ => Err(wrong(key, text, "a power of two, or 0 to switch it off")),
    };
    let Some(list) = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')) else {
        return Ok([division(value)?; 16]);
    };
    let mut divisions = [0; 16];
    let mut last = None;
    for entry in list.split(',').filter(|entry| !entry.is_empty()) {
        let Some((interval, count)) = entry.split_once(':') else {
            return Err(wrong(key, entry, "a list of INTERVAL:DIVISIONS"));
        };
        let count = division(count)?;
        if interval == ">" {
            let from = last.map_or(1, |last| last + 1);
            divisions.iter_mut().skip(from).for_each(|slot| *slot = count);
            continue;
        }
        let mebibytes = interval.parse::<u64>().ok().filter(|mebibytes| mebibytes.is_power_of_two());
        let Some(index) = mebibytes.map(|mebibytes| mebibytes.ilog2().min(15) as usize) else {
            return Err(wrong(key, interval, "a list of intervals that are powers of two in MiB, or `>`"));
        };
        let from = if last.is_none() { 0 } else { index };
        divisions.iter_mut().take(index + 1).skip(from).for_each(|slot| *slot = count);
        last = Some(index);
    }
    Ok(divisions)
}

impl fmt::Display for Settings {
    /// In PyTorch's syntax, the settings that are not torch's defaults; `default` if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Settings::default();
        let mut parts = Vec::new();
        if self.expandable_segments {
            parts.push("expandable_segments:True".to_owned());
        }
        let sizes = [
            ("max_split_size_mb", self.cut.max_split_size, default.cut.max_split_size),
            ("large_segment_size_mb", self.cut.large_segment, default.cut.large_segment),
            ("max_non_split_rounding_mb", self.non_split_rounding, default.non_split_rounding),
        ];
        let set = sizes.iter().filter(|(_, value, default)| value != default);
        parts.extend(set.map(|(key, value, _)| format!("{key}:{}", value / MIB)));
        let divisions = self.rounding.divisions;
        if divisions.iter().all(|count| *count == divisions[0]) {
            parts.extend((divisions[0] > 0).then(|| format!("roundup_power2_divisions:{}", divisions[0])));
        } else {
            let list: Vec<String> =
                (0..).zip(divisions).map(|(index, count)| format!("{}:{count}", 1u32 << index)).collect();
            parts.push(format!("roundup_power2_divisions:[{}]", list.join(",")));
        }
        if self.garbage_collection_threshold > 0.0 {
            parts.push(format!("garbage_collection_threshold:{}", self.garbage_collection_threshold));
        }
        if self.memory_fraction < 1.0 {
            parts.push(format!("per_process_memory_fraction:{}", self.memory_fraction));
        }
        if parts.is_empty() {
            return f.write_str("default");
        }
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Settings {
        text.parse().unwrap()
    }

    fn refused(text: &str) -> String {
        text.parse::<Settings>().unwrap_err().to_string()
    }

    #[test]
    fn reads_what_torch_reads() {
        assert_eq!(read(""), Settings::default());
        let all = read(
            " max_split_size_mb:40, max_non_split_rounding_mb:30,garbage_collection_threshold:0.5,\
             roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1],expandable_segments:True,\
             pinned_use_background_threads:True,",
        );
        assert_eq!((all.cut.max_split_size, all.non_split_rounding), (40 * MIB, 30 * MIB));
        assert!(all.expandable_segments && all.garbage_collection_threshold == 0.5);
        // the figures that torch's own test of this text asks for
        let at = |mebibytes: u64| all.rounding.divisions[mebibytes.ilog2() as usize];
        assert_eq!([32, 64, 128, 256, 512, 1024, 2048, 4096].map(at), [8, 8, 2, 4, 2, 4, 1, 1]);
        assert_eq!(read("roundup_power2_divisions:4").rounding.divisions, [4; 16]);
        assert_eq!(
            read("roundup_power2_divisions:[256:1,1024:4]").rounding.divisions[9],
            0,
            "512 is not named"
        );
        assert_eq!(read("backend:native,large_segment_size_mb:12").cut.large_segment, 12 * MIB);
    }

    #[test]
    fn says_what_it_read() {
        for text in [
            "default",
            "expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.8",
            "large_segment_size_mb:32,max_non_split_rounding_mb:64,roundup_power2_divisions:8",
            "per_process_memory_fraction:0.5",
        ] {
            assert_eq!(read(text.trim_start_matches("default")).to_string(), text.to_owned());
        }
        let list = read("roundup_power2_divisions:[256:1,512:2,>:4]");
        assert_eq!(read(&list.to_string()), list);
    }

    #[test]
    fn what_torch_refuses_is_refused_with_the_mend() {
        assert_eq!(
            refused("max_splt_size_mb:128"),
            "torch knows no setting `max_splt_size_mb`\n  help: did you mean `max_split_size_mb`?"
        );
        assert!(
            refused("colour:red").contains("the settings are max_split_size_mb, roundup_power2_divisions")
        );
        assert_eq!(
            refused("backend:cudaMallocAsync"),
            "`cudaMallocAsync` is an allocator of its own, which nothing here replays\n  help: only torch's native \
             allocator is known: leave `backend` out"
        );
        assert_eq!(
            refused("max_split_size_mb:10"),
            "`max_split_size_mb` is 10 MiB, less than a segment of 20 MiB\n  help: use 20 or more"
        );
        assert_eq!(
            refused("expandable_segments:true"),
            "`expandable_segments` is True or False, not `true`\n  help: write it with a capital letter, as torch asks for"
        );
        assert!(refused("expandable_segments").contains("is not key:value"));
        assert!(refused("roundup_power2_divisions:[256:3]").contains("a power of two"));
        assert!(refused("roundup_power2_divisions:[300:4]").contains("powers of two in MiB"));
        assert!(refused("roundup_power2_divisions:[256:1").contains("is not closed"));
        assert!(refused("garbage_collection_threshold:1").contains("between 0 and 1"));
        assert!(refused("per_process_memory_fraction:2").contains("from 0 to 1"));
        assert!(refused("large_segment_size_mb:10").contains("11 MiB or more"));
        assert!(refused("max_split_size_mb:-1").contains("a whole number of MiB"));
    }
}

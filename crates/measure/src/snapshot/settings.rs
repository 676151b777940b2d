//! How the allocator was configured, as far as a snapshot says (torch 2.3+).

use peakledger_core::block::{Cut, LARGE_SEGMENT, MIB, NON_SPLIT_ROUNDING, Rounding};

/// The allocator's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Whether the snapshot has them; where not, they are torch's defaults.
    pub recorded: bool,
    /// `PYTORCH_CUDA_ALLOC_CONF` as it was set.
    pub alloc_conf: String,
    /// `roundup_power2_divisions`.
    pub rounding: Rounding,
    /// `max_split_size` and the segment of middling requests.
    pub cut: Cut,
    /// `max_non_split_rounding_mb` in bytes.
    pub non_split_rounding: u64,
    /// Whether new segments are expandable.
    pub expandable_segments: bool,
    /// `garbage_collection_threshold`; 0 is off.
    pub garbage_collection_threshold: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            recorded: false,
            alloc_conf: String::new(),
            rounding: Rounding::default(),
            cut: Cut::default(),
            non_split_rounding: NON_SPLIT_ROUNDING,
            expandable_segments: false,
            garbage_collection_threshold: 0.0,
        }
    }
}

impl Settings {
    /// Takes from `PYTORCH_CUDA_ALLOC_CONF` what the snapshot does not have as a field of its own.
    pub(crate) fn read_alloc_conf(&mut self, text: String) {
        let mib = |key: &str| {
            let mut entries = text.split(',').filter_map(|entry| entry.split_once(':'));
            let value = entries.find(|(name, _)| name.trim() == key)?.1;
            value.trim().parse::<u64>().ok()?.checked_mul(MIB)
        };
        self.cut.large_segment = mib("large_segment_size_mb").unwrap_or(LARGE_SEGMENT);
        self.non_split_rounding = mib("max_non_split_rounding_mb").unwrap_or(NON_SPLIT_ROUNDING);
        self.alloc_conf = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_field_is_read_from_the_text() {
        let mut settings = Settings::default();
        settings.read_alloc_conf("expandable_segments:True, large_segment_size_mb:64".to_owned());
        assert_eq!((settings.cut.large_segment, settings.non_split_rounding), (64 * MIB, 20 * MIB));
    }
}

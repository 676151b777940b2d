//! The keys that snapshots have. They are the first words of every [`Texts`](super::Texts), so that a key is known by its
//! number.

use super::texts::TextId;

macro_rules! keys {
    ($($key:ident $word:literal),* $(,)?) => {
        /// A key that has a meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Key { $($key),* }

        /// All of them, in order.
        const KEYS: &[(Key, &str)] = &[$((Key::$key, $word)),*];
    };
}

keys! {
    Action "action", Addr "addr", Size "size", Stream "stream", TimeUs "time_us", Frames "frames",
    UserMetadata "user_metadata", PoolId "pool_id", DeviceFree "device_free",
    CompileContext "compile_context", Filename "filename", Name "name", Line "line",
    Address "address", RequestedSize "requested_size", State "state", History "history",
    RealSize "real_size", Device "device", TotalSize "total_size", AllocatedSize "allocated_size",
    ActiveSize "active_size", SegmentType "segment_type", SegmentPoolId "segment_pool_id",
    IsExpandable "is_expandable", Blocks "blocks", Stage "stage",
    Segments "segments", DeviceTraces "device_traces", AllocatorSettings "allocator_settings",
    ExternalAnnotations "external_annotations", HostSegments "host_segments", HostTraces "host_traces",
    AllocConf "PYTORCH_CUDA_ALLOC_CONF", MaxSplitSize "max_split_size",
    GarbageCollectionThreshold "garbage_collection_threshold", ExpandableSegments "expandable_segments",
    RoundupPower2Divisions "roundup_power2_divisions",
}

impl Key {
    /// The key with that number, if it has a meaning.
    #[inline]
    pub(crate) fn of(text: TextId) -> Option<Key> {
        KEYS.get(text.0 as usize).map(|(key, _)| *key)
    }

    /// Its number.
    pub(crate) fn id(self) -> TextId {
        TextId(self as u32)
    }

    /// As one of a set.
    #[inline]
    pub(crate) fn bit(self) -> u64 {
        1 << (self as u64)
    }

    /// All words, in the order of their numbers.
    pub(crate) fn words() -> impl Iterator<Item = &'static str> {
        KEYS.iter().map(|(_, word)| *word)
    }

    /// The word in files.
    pub(crate) fn as_str(self) -> &'static str {
        KEYS.get(self as usize).map_or("", |(_, word)| word)
    }
}

const _: () = assert!(KEYS.len() <= 64, "a set of keys is 64 bits");

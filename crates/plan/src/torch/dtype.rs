//! Element types: their width, and what torch makes of two of them.

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // torch's own names, shortened
pub enum Dtype {
    Bool,
    Int32,
    Int64,
    /// `float16`
    F16,
    /// `bfloat16`
    Bf16,
    /// `float32`
    F32,
    /// `float64`
    F64,
    /// `uint8`: packed weights; and whatever a kernel keeps for itself: seeds of a random generator.
    Byte,
}

impl Dtype {
    /// Bytes an element.
    pub const fn width(self) -> u64 {
        match self {
            Dtype::Bool | Dtype::Byte => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 | Dtype::Int32 => 4,
            Dtype::Int64 | Dtype::F64 => 8,
        }
    }

    /// Whether it is a floating type narrower than fp32.
    pub const fn is_half(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::Bf16)
    }

    /// Whether it can carry a gradient.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::Bf16 | Dtype::F32)
    }

    /// The type of an elementwise result over two tensors (`c10/core/ScalarType.h`, promoteTypes).
    pub fn promote(self, other: Dtype) -> Dtype {
        match (self, other) {
            (a, b) if a == b => a,
            (Dtype::F16, Dtype::Bf16) | (Dtype::Bf16, Dtype::F16) => Dtype::F32,
            (a, b) if a.is_float() != b.is_float() => {
                if a.is_float() {
                    a
                } else {
                    b
                }
            }
            (a, b) => a.max(b),
        }
    }

    /// The short name people use: `bf16`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Dtype::Bool => "bool",
            Dtype::Int32 => "int32",
            Dtype::Int64 => "int64",
            Dtype::F16 => "fp16",
            Dtype::Bf16 => "bf16",
            Dtype::F32 => "fp32",
            Dtype::F64 => "fp64",
            Dtype::Byte => "byte",
        }
    }
}
